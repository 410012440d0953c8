"""Checkpoint folders of the hub: the cached one where it is whole, else a download."""

from __future__ import annotations

from pathlib import Path

from flexinfer.config import Report, quiet
from flexinfer.errors import EnvironmentUnfit, UsageError
from flexinfer.weights import names
from flexinfer.weights.checkpoint import weight_files

_WANTED = ["*.json", "*.jinja", "*.txt", "tokenizer.model", "model*.safetensors"]


def cached_config(hub_ids: tuple[str, ...]) -> Path | None:
    """Return the folder of the first id whose config.json is cached; no network."""
    from huggingface_hub import try_to_load_from_cache

    found = (try_to_load_from_cache(hub_id, "config.json") for hub_id in hub_ids)
    return next((Path(path).parent for path in found if isinstance(path, str)), None)


def folder(found: names.ModelName, report: Report = quiet) -> Path:
    """Return a folder with the whole checkpoint of the first id that is cached, else reachable.

    Raises EnvironmentUnfit, with the cures, where none is.
    """
    for hub_id in found.hub_ids:
        if whole := _cached(hub_id):
            return whole
    reasons = []
    for hub_id in found.hub_ids:
        report(f"downloading {hub_id}", 0, 0)
        try:
            return Path(fetched(hub_id, _WANTED, report))
        except (OSError, ValueError) as error:  # what huggingface_hub raises derives from these
            reasons.append(f"{hub_id}: {reason(error)}")
    raise EnvironmentUnfit(
        f"{found.name} is neither cached nor reachable ({'; '.join(reasons)})",
        hint="log in with `hf auth login` if it is gated, download it and give the folder, "
        f"try --load-format dummy, or --model {names.TINY}",
    )


def _cached(hub_id: str) -> Path | None:
    """Return the cached snapshot of `hub_id` where it has config, weights and tokenizer."""
    if (path := cached_config((hub_id,))) is None:
        return None
    try:
        weight_files(path)
    except UsageError:
        return None
    return path if (path / "tokenizer_config.json").exists() else None


def fetched(
    hub_id: str, wanted: list[str], report: Report = quiet, *, kind: str | None = None
) -> str:
    """Return the folder of the `wanted` files of `hub_id`, fetched or, with no network, cached.

    The hub's bars are shown unless `report` is quiet; `kind` is "dataset" for no model. The hub is
    asked once, not again and again: what fails raises OSError or ValueError at once (see reason).
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    silenced = report is quiet and not are_progress_bars_disabled()
    if silenced:
        disable_progress_bars()
    try:
        return str(snapshot_download(hub_id, allow_patterns=wanted, repo_type=kind))
    finally:
        if silenced:
            enable_progress_bars()


def reason(error: Exception) -> str:
    """Say in a few words why something could not be had of the hub."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return "gated, and you are not logged in or not allowed"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "not on the hub, or private"
    if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
        return "no connection to the hub"
    return next(iter(str(error).splitlines()), type(error).__name__)
