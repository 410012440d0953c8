"""Checks of the way to weights: hub, token, cache, disk."""

from __future__ import annotations

from flexinfer.tasks.doctor.context import Context
from flexinfer.tasks.doctor.facts.hub_cache import (
    cache_folder,
    cached_models,
    endpoint,
    offline_variable,
    token_source,
)
from flexinfer.tasks.doctor.facts.memory_plan import weight_bytes
from flexinfer.tasks.doctor.facts.shapes import shapes
from flexinfer.tasks.doctor.report import Finding, fail, ok, skip, unfit, warn

HUB_TIMEOUT_S = 6.0
"""Of all questions together, name resolution too, which has no limit of its own."""

WITHOUT_HUB = "--load-format dummy and --model tiny-gemma4 need no hub"
LITTLE_DISK = 5e9
SHOWN = 3


def hub(context: Context) -> Finding:
    """Ask the hub for the model, where its weights are not on this machine."""
    target, address = context.target, endpoint(context.environment)
    missing = bool(target.name.hub_ids) and not target.is_local
    if variable := offline_variable(context.environment):
        found = f"{variable} is set"
        if not missing:
            return skip(found, f"{target.label} is on this machine")
        why = f"{target.label} is not on this machine and may not be fetched"
        return unfit(target.asked, found, why, f"unset {variable}; {WITHOUT_HUB}")
    repos = target.name.hub_ids if missing else ()
    probe = context.probe("hub", address, *repos, timeout_s=HUB_TIMEOUT_S)
    facts = probe.facts
    if not facts.get("reachable") or probe.error is not None:
        found = f"{address}: {probe.error or facts.get('reason')}"
        if not missing:
            return skip(found, f"not needed: {target.label} is on this machine")
        why = f"{target.label} is not on this machine"
        fix = f"check the network, a proxy (HTTPS_PROXY) or a mirror (HF_ENDPOINT); {WITHOUT_HUB}"
        return unfit(target.asked, found, why, fix)
    return _repositories(context, facts.get("repos", {}), facts["seconds"])


def _repositories(context: Context, repos: dict[str, int], seconds: float) -> Finding:
    """Judge the hub's answers about the model's repositories."""
    found = f"{endpoint(context.environment)} answered in {seconds * 1e3:.0f} ms"
    if not repos or any(status == 200 for status in repos.values()):
        able = next((repo for repo, status in repos.items() if status == 200), None)
        return ok(f"{found}; {able} is there" if able else found)
    said = ", ".join(f"{repo}: HTTP {status}" for repo, status in repos.items())
    if any(status in (401, 403) for status in repos.values()):
        why = "it is gated, private or does not exist, for the token of this machine"
        fix = "accept its licence on its page, then: hf auth login"
        return unfit(context.target.asked, said, why, fix)
    return unfit(context.target.asked, said, "the hub does not offer it", WITHOUT_HUB)


def token(context: Context) -> Finding:
    """Say whether there is a hub token, never which."""
    source = token_source(context.environment)
    if source is None:
        return skip("none", "only gated and private models need one", "hf auth login")
    return ok(f"present ({source})")


def cache(context: Context) -> Finding:
    """Say which models are on this machine, and whether the one asked for is."""
    target, models = context.target, cached_models(context.environment)
    shown = ", ".join(models[:SHOWN]) + (", ..." if len(models) > SHOWN else "")
    found = f"{len(models)} cached" + (f": {shown}" if models else "")
    if target.is_local:
        where = "embedded or local" if target.name.hub_ids == () else "cached"
        return ok(f"{target.label} is {where}; {found}")
    if target.name.folder is not None:
        why = "a folder is loaded as it is, nothing is downloaded into it"
        return fail(f"{target.name.folder} holds no weights; {found}", why, "download it again")
    answer = hub(context)
    if answer.status == "ok":
        return ok(f"{target.label} will be downloaded; {found}")
    found = f"{target.label} is not cached and cannot be downloaded; {found}"
    return unfit(target.asked, found, f"hub: {answer.found}", answer.fix)


def disk(context: Context) -> Finding:
    """Check that the hub's cache can be written and holds the model, or a few small files."""
    folder, target = cache_folder(context.environment), context.target
    if not context.environment.writable(folder):
        why = "models are downloaded to it" + ("; this one is here" if target.is_local else "")
        fix = "set HF_HOME to a folder that can be written"
        return unfit(target.asked and not target.is_local, f"{folder} cannot be written", why, fix)
    free = context.environment.disk_free(folder)
    found = f"{free / 1e9:.0f} GB free at {folder}"
    if not target.is_local and target.config is not None:
        size = weight_bytes(shapes(target.config), "bf16", 2)
        if free < size:
            why = f"{target.label} needs {size / 1e9:.1f} GB"
            fix = "free disk space, or set HF_HOME to a larger disk"
            return unfit(target.asked, found, why, fix)
    if free < LITTLE_DISK:
        return warn(found, "checkpoints take gigabytes", "set HF_HOME to a larger disk")
    return ok(found)
