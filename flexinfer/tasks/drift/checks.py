"""The checks: pure functions from what was recorded and scored to verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import mean

from flexinfer.tasks.drift.gaps import Answers, Rollout, changed, n_different, partings, widest
from flexinfer.tasks.drift.limits import EFFECT, FLOORS, KEPT, TIMES_MAX
from flexinfer.tasks.drift.record import Record
from flexinfer.tasks.drift.score import Scores
from flexinfer.tasks.drift.survival import Survival

Value = float | int | str | None


@dataclass(frozen=True, kw_only=True)
class Check:
    """One verdict: what was `measured`, the `limit` it is held against, and both in words."""

    name: str
    passed: bool
    measured: Value
    limit: Value
    detail: str


def base_check(before: str, after: str, cycles: int) -> Check:
    """Check that no base tensor has changed."""
    return Check(
        name="base_bit_identical",
        passed=before == after,
        measured=after,
        limit=before,
        detail="sha256 over all base tensors: the limit is taken before the engine is built, "
        f"measured after {cycles} cycles of moving the adapter, refreshing and rolling out",
    )


def recorded_checks(record: Record) -> Iterator[Check]:
    """Yield what needs no trainer: each compares bits, but for the adapter's effect."""
    first, last = record.first, record.last
    yield _bits(
        "inference_deterministic", first.sha, record.again.sha, first.rollout, record.again.rollout,
        "token ids, log-probabilities and inference weights of two refreshes to one adapter",
    )  # fmt: skip
    yield _bits(
        "restored_bit_equal", first.sha, record.restored.sha, first.rollout,
        record.restored.rollout, "token ids, log-probabilities and inference weights before the "
        "cycles, against those with the first adapter brought back after the cycles",
    )  # fmt: skip
    yield Check(
        name="refresh_idempotent",
        passed=len(set(record.repeats)) == 1,
        measured=len(set(record.repeats)),
        limit=1,
        detail="number of different inference weights after 1, 2 and 3 refreshes to one adapter",
    )
    effect = changed(*record.effect)
    tokens = sum(len(sample.token_ids) for sample in record.effect[0])
    yield Check(
        name="adapter_effect",
        passed=effect > EFFECT,
        measured=effect,
        limit=EFFECT,
        detail="largest difference that the adapter makes to a log-probability, against an "
        f"adapter of zeros (nats, {tokens} tokens); measured must exceed the limit",
    )
    yield _bits(
        "no_stale_cache", None, None, last.rollout, record.fresh,
        "the moved adapter in the refreshed engine, which has served the same prompts with other "
        "adapters, against the moved adapter in a new engine",
    )  # fmt: skip
    if record.survivals:
        yield survival_check(record.survivals)


def _bits(
    name: str, sha: str | None, other_sha: str | None, one: Rollout, other: Rollout, what: str
) -> Check:
    """Compare two rollouts bit by bit, and the hashes that cover their weights too."""
    different = n_different(one, other)
    total = sum(len(sample.token_ids) for sample in one)
    weights = ", the inference weights too" if sha != other_sha and not different else ""
    found = f"{different} of {total} tokens differ{weights}"
    if different:
        found += f", log-probabilities by up to {widest(one, other):.3g} before ids part"
    return Check(
        name=name,
        passed=different == 0 and sha == other_sha,
        measured=different if sha == other_sha else max(different, 1),
        limit=0,
        detail=f"{what}: {found}",
    )


def survival_check(found: tuple[Survival, ...]) -> Check:
    """Check that every merge keeps of its delta what one rounding to nearest keeps."""
    worst = max(found, key=lambda one: abs(one.kept - one.attainable))
    least = min(found, key=lambda one: one.kept)
    off = abs(worst.kept - worst.attainable)
    return Check(
        name="merge_survival",
        passed=off <= KEPT,
        measured=off,
        limit=KEPT,
        detail="fraction of the adapter's delta that is left after merging and rounding: mean "
        f"{mean(one.kept for one in found):.4f}, least {least.kept:.4f} ({least.name}); measured "
        f"is the largest difference, over {len(found)} modules, to the fraction that one rounding "
        f"of the exact sum leaves ({worst.name}: {worst.kept:.4f}, one rounding leaves "
        f"{worst.attainable:.4f})",
    )


def trainer_checks(states: Mapping[str, Scores]) -> Iterator[Check]:
    """Yield the gaps to the trainer, each at the state where it is largest against its limit."""
    for name, gap_name, words in (
        ("trainer_mean_gap", "mean_gap", "mean |trainer - rollout| of log-probabilities (nats)"),
        ("trainer_max_gap", "max_gap", "largest |trainer - rollout| of log-probabilities (nats)"),
        ("trainer_k3", "k3", "k3 estimate of KL(rollout, trainer) (nats)"),
    ):

        def excess(state: str, gap_name: str = gap_name) -> float:
            scores = states[state]
            found: float = getattr(scores.gap, gap_name)
            limit: float = getattr(scores.limits, gap_name)
            return found / limit if found == found else float("inf")

        worst = max(states, key=excess)
        scores = states[worst]
        measured: float = getattr(scores.gap, gap_name)
        yield Check(
            name=name,
            passed=all(excess(state) <= 1 for state in states),
            measured=measured if scores.gap.finite else None,
            limit=getattr(scores.limits, gap_name),
            detail=f"{words}, with the {worst}: {_told(name, scores)}",
        )


def _told(name: str, scores: Scores) -> str:
    """Return what a gap's number does not say."""
    gap, yardstick = scores.gap, scores.yardstick
    if name == "trainer_mean_gap":
        return f"{gap.tokens} tokens; a perfect rollout would measure {yardstick.mean_gap:.2g}"
    if name == "trainer_k3":
        return (
            f"probability ratio trainer / rollout min {gap.ratio_min:.5f}, mean "
            f"{gap.ratio_mean:.5f}, max {gap.ratio_max:.5f}; a perfect rollout would measure "
            f"{yardstick.k3:.2g}"
        )
    found = scores.divergence
    if found is None:
        return (
            f"no token exceeds the limit; a perfect rollout would measure {yardstick.max_gap:.2g}"
        )
    return (
        f"first to exceed the limit: prompt {found.prompt} ({found.prompt_tokens} tokens), new "
        f"token {found.position}, token {found.token}: rollout {found.rollout:.5f}, trainer "
        f"{found.trainer:.5f}"
    )


def batch_check(record: Record, scores: Scores, *, exact: bool) -> Check:
    """Compare the rollouts in batches of every size with the first."""
    sizes = ", ".join(map(str, record.batched))
    named = {f"batches of {size}": answers for size, answers in record.batched.items()}
    what = f"prompts shuffled into batches of {sizes}, each row against the first rollout's"
    first = record.first.rollout
    return _alike("same_in_any_batch", what, named, first, scores, exact=exact)


def invariant_check(record: Record) -> Check | None:
    """Hold every row of every batch size, under --batch-invariant, against its prompt alone."""
    if record.invariant is None:
        return None
    alone = sorted(zip(*record.invariant[1], strict=True), key=lambda one: len(one[1].token_ids))
    longest = dict(alone)
    first = tuple(longest[number] for number in range(len(longest)))
    different = sum(
        one != other
        for answers in record.invariant.values()
        for one, other in zip(answers.samples, answers.of(first), strict=True)
    )
    return Check(
        name="same_bits_batch_invariant",
        passed=different == 0,
        measured=different,
        limit=0,
        detail="rows with --batch-invariant in batches of "
        f"{', '.join(map(str, record.invariant))} of which any bit of ids or log-probabilities "
        "differs from the same prompt served alone",
    )


def graph_check(record: Record, scores: Scores, *, exact: bool) -> Check | None:
    """Compare the rollout without CUDA graphs with the first, where there are graphs."""
    if record.eager is None:
        return None
    whole = Answers(tuple(range(len(record.eager))), record.eager)
    return _alike(
        "same_in_graph_and_eager", "rollout without CUDA graphs, each row against the first "
        "rollout's, which has them", {"eager": whole},
        record.first.rollout, scores, exact=exact,
    )  # fmt: skip


def _alike(
    name: str,
    what: str,
    named: Mapping[str, Answers],
    first: Rollout,
    scores: Scores,
    *,
    exact: bool,
) -> Check:
    """Hold rollouts against one: bits where `exact`, else gaps, and ids where margins are clear.

    Where ids part for the first time, the reference's margin between its two best tokens there must
    be within the noise: else one of the two runs is wrong.
    """
    floor = FLOORS[scores.reference.dtype].max_gap
    limit = 0.0 if exact else max(floor, TIMES_MAX * scores.own.max_gap)
    gaps = {label: widest(found.of(first), found.samples) for label, found in named.items()}
    worst = max(gaps, key=lambda label: gaps[label])
    parted = [
        (label, at._replace(prompt=found.numbers[at.prompt]))
        for label, found in named.items()
        for at in partings(found.of(first), found.samples)
    ]
    margins = [scores.reference.scores[at.prompt][at.position].margin for _, at in parted]
    wrong = [
        f"{label}: prompt {at.prompt}, new token {at.position} is {at.other} instead of {at.token} "
        f"(margin {margin:.3g} logits, {scores.limits.margin:.2g} is noise)"
        for (label, at), margin in zip(parted, margins, strict=True)
        if exact or margin > scores.limits.margin
    ]
    ids = f"ids part {len(parted)} times, {len(wrong)} of them wrongly" if parted else "same ids"
    return Check(
        name=name,
        passed=gaps[worst] <= limit and not wrong,
        measured=gaps[worst],
        limit=limit,
        detail=f"{what}: {ids}; measured is the largest gap of log-probabilities"
        f"{' before ids part' if parted else ''} (nats), found with {worst}"
        + (f"; {wrong[0]}" if wrong else ""),
    )
