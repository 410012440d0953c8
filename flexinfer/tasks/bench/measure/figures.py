"""From timed calls and counters to the figures of a row: arithmetic only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median, median_low
from typing import Any

from flexinfer.tasks.bench.measure.rounds import Call, Measured
from flexinfer.tasks.bench.result import Roofline
from flexinfer.tasks.roofline import StepCost, decode_bytes

SAMPLES, SAMPLE_CHARACTERS = 3, 200


def percentiles(values_s: Sequence[float]) -> dict[str, float] | None:
    """Return p50, p90, p99 (nearest rank) and max of seconds, in milliseconds; None for none."""
    ranked = sorted(values_s)
    if not ranked:
        return None
    ranks = {f"p{p}": math.ceil(len(ranked) * p / 100) - 1 for p in (50, 90, 99)}
    return {name: ranked[rank] * 1e3 for name, rank in ranks.items()} | {"max": ranked[-1] * 1e3}


def figures(measured: Measured) -> dict[str, Any]:
    """Return the fields of a row that the calls and counters give; flagged rounds stay out."""
    good = [call for call in measured.rounds if call.problem is None]
    prompt_tokens = sum(len(output.prompt_token_ids) for output in measured.warm_up.outputs)
    during = measured.during
    first = percentiles(during.ttft_s)
    return (
        _speed(good)
        | _apart(measured, good)
        | {
            "capture_cudagraph": measured.before.graph_replays + during.graph_replays > 0,
            "n_prompt_tokens": prompt_tokens,
            "wall_times_s": tuple(call.wall_s for call in measured.rounds),
            "round_tokens": tuple(call.tokens for call in measured.rounds),
            "flagged_rounds": {
                number: call.problem
                for number, call in enumerate(measured.rounds, 1)
                if call.problem is not None
            },
            "prefill_tps": _prefill_tps(measured.prefill, prompt_tokens),
            "ttft_s": first and first["p50"] / 1e3,
            "ttft_ms": first,
            "step_ms": percentiles(during.step_s),
            "compile_s": measured.before.compile_s + during.compile_s,
            "capture_s": measured.before.capture_s + during.capture_s,
            "warm_up_s": measured.warm_up.wall_s,
            "graph_replays": during.graph_replays,
            "eager_steps": during.eager_steps,
            "preemptions": during.preemptions,
            "sample_completions": _samples(measured.warm_up),
        }
    )


def remarks(measured: Measured) -> tuple[str, ...]:
    """Return what a reader of the figures must know: work that fell into the timed rounds."""
    spent = measured.during.compile_s + measured.during.capture_s
    late = (f"compiling and capture took {spent:.1f} s of the timed rounds",) if spent else ()
    bad = next((call.problem for call in measured.prefill if call.problem is not None), None)
    return late if bad is None else (*late, f"no prefill figure: {bad}")


def roofline_figures(
    measured: Measured, cost: StepCost | None, bandwidth: float | None, batch_size: int
) -> Mapping[str, Any]:
    """Return `roofline_pct` and `roofline`; nothing without a bandwidth, a shape or decode steps.

    `bandwidth` is in bytes a second. A round's own tokens are held against its own decode time, so
    prefill is on neither side, and a round that ends early is on both.
    """
    if cost is None or bandwidth is None:
        return {}
    floors_s, shares, kv_of_row = [], [], []
    for call, decode_s in _decoding(measured):
        prompts, news = zip(*call.samples, strict=True)
        floors_s.append(decode_bytes(cost, prompts, news, batch_size) / bandwidth)
        shares.append(100.0 * floors_s[-1] / decode_s)
        kv = sum(cost.kv_read(p + 1, p + n) for p, n in zip(prompts, news, strict=True))
        kv_of_row.append(kv / (sum(news) - len(news)))
    if not floors_s or median(floors_s) <= 0.0:
        return {}
    roofline = Roofline(
        weight_gb=cost.weight_bytes / 1e9,
        kv_bytes_per_token=cost.kv_bytes_per_token,
        kv_bytes_per_row=median(kv_of_row),
        copy_gb_per_s=bandwidth / 1e9,
        decode_floor_s=median(floors_s),
    )
    return {"roofline_pct": median(shares), "roofline": roofline}


def _decoding(measured: Measured) -> list[tuple[Call, float]]:
    """Return the rounds that count and decode, each with the seconds it took beyond prefill.

    There are none where the median round took none: what is left of it then is noise.
    """
    good = [call for call in measured.rounds if call.problem is None]
    first = [call.wall_s for call in measured.prefill if call.problem is None]
    if not good or not first or median(call.wall_s for call in good) <= median(first):
        return []
    apart = [(call, call.wall_s - median(first)) for call in good]
    return [(call, s) for call, s in apart if s > 0.0 and call.tokens > len(call.samples)]


def _speed(good: Sequence[Call]) -> dict[str, Any]:
    """Return walls and rates of the rounds that count; a rate is of one round, never mixed."""
    if not good:
        return {}
    walls = [call.wall_s for call in good]
    rates = [call.tokens / call.wall_s for call in good]
    return {
        "n_decoded_tokens": median_low(call.tokens for call in good),
        "prefill_tokens": median_low(call.prefill_tokens for call in good),
        "median_wall_s": median(walls),
        "best_wall_s": min(walls),
        "wall_spread_pct": 100.0 * (max(walls) - min(walls)) / median(walls),
        "decode_tps_median": median(rates),
        "decode_tps_best": max(rates),
    }


def _apart(measured: Measured, good: Sequence[Call]) -> dict[str, Any]:
    """Return what prefill and decoding take of a round, each by itself."""
    walls = [call.wall_s for call in measured.prefill if call.problem is None]
    if not walls:
        return {}
    prefill_s = median(walls)
    rates = [(call.tokens - len(call.samples)) / s for call, s in _decoding(measured)]
    if not rates:
        return {"prefill_s": prefill_s}
    decode_s = median(call.wall_s for call in good) - prefill_s
    return {"prefill_s": prefill_s, "decode_s": decode_s, "decode_only_tps": median(rates)}


def _prefill_tps(calls: Sequence[Call], prompt_tokens: int) -> float | None:
    """Return prompt tokens a second of the one-token calls."""
    walls = [call.wall_s for call in calls if call.problem is None]
    return prompt_tokens / median(walls) if walls else None


def _samples(call: Call) -> tuple[str, ...]:
    """Return the first completions' texts, shortened."""
    texts = (completion.text for output in call.outputs for completion in output.outputs)
    return tuple(text[:SAMPLE_CHARACTERS] for text, _ in zip(texts, range(SAMPLES), strict=False))
