"""What bench reports: one frozen row per back end and batch size, and the document around them.

Units: `_s` seconds of wall clock, `_ms` milliseconds, `_tps` tokens a second, `_gb` 10**9 bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from flexinfer.tasks.bench.compare.agreement import Agreement, ProbeSample
from flexinfer.tasks.bench.compare.gate import Gate
from flexinfer.tasks.bench.profile.result import Profile
from flexinfer.tasks.environment import SCHEMA_VERSION

Verdict = Literal[
    "ok", "inconclusive", "regression", "flagged", "failed", "wrong output", "interrupted"
]
DEFINITIONS: Mapping[str, str] = {
    "decode_tps": "decoded tokens of one round over the wall clock of that same round, "
    "the whole call, prefill included; median and best over the rounds that are not flagged",
    "n_decoded_tokens": "decoded tokens of one round, all samples together",
    "prefill_tokens": "positions of one round that prefill computed: a prompt that its samples "
    "share counts once: its further samples begin in a decode step, with its last token",
    "prefill_tps": "prompt tokens over the median wall clock of a call with one new token",
    "ttft_s": "the p50 of ttft_ms, in seconds",
    "step_ms": "decode steps of the timed rounds, host wall clock",
    "graph_replays": "in the timed rounds together, as eager_steps and preemptions",
    "peak_memory_gb": "10**9 bytes allocated on the device at most, weights included, from after "
    "the output gate to the last round; without CUDA the process's largest resident set so far",
    "gate": "a greedy probe against the Hugging Face module over the same weights: of the tokens "
    "checked (the reference's margin exceeds the noise of its dtype) all must be the reference's",
    "profile": "taken after the timed rounds: `ops` are the operations of one decode step in the "
    "middle of the workload, each with what it adds to the time the device is busy and the bytes "
    "it must move; `call` is a whole call under the profiler, which stretches its gaps",
    "ttft_ms": "percentiles (nearest rank) over the requests of the timed rounds, from the start "
    "of the call to a request's first token, so that waiting for a place in the batch is in it",
    "wall_spread_pct": "slowest less fastest wall clock of the rounds that count, of their median",
    "prefill_s": "median wall clock of a call with one new token; decode_s is the median wall less "
    "that; decode_only_tps is of a round its tokens after the first ones over its wall less "
    "prefill_s, median over the rounds",
    "open_s": "from loaded weights to an engine that takes requests; where a back end loads, "
    "compiles or captures then, that is in it. compile_s and capture_s are of the engine's own "
    "telling, wherever they fell, and no timed round should hold any (see notices)",
    "gate_s": "of the whole output gate, what the reference takes included",
    "probe": "greedy tokens of the output gate; `clear` where the reference prefers that token by "
    "more than its noise",
    "agreements": "the probe's tokens of each row against those of the first one of the same work, "
    "its adapter brought in alike if any is; past its first divergence a sample is not compared",
    "noise_pct": "two standard errors of the difference of the medians, from the median absolute "
    "deviation of the rounds' rates; what differs between processes is not in it",
    "inconclusive": "the noise is larger than --fail-below, and a loss beyond that may hide in it: "
    "exit code 0, as nothing was found",
    "refresh_s": "median of 5 refreshes of the adapter from memory, until the device is done",
    "roofline_pct": "bytes decoding must read over the copy bandwidth measured in this run, as a "
    "percentage of the round's decode time (its wall less the one-token call), median over the "
    "rounds",
}

KEY = (
    "backend",
    "model_name",
    "lora_adapter",
    "lora_mode",
    "quantization",
    "max_batch_size",
    "n_prompts",
    "n_samples",
    "prompt_length",
    "max_new_tokens",
)
"""What must be the same for the figures of two runs to be comparable."""


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """The floor that `roofline_pct` compares with; `decode_floor_s` is for the median round.

    `kv_bytes_per_row` is what one row reads of the KV cache in a step, in the mean of a round.
    """

    weight_gb: float
    kv_bytes_per_token: int
    kv_bytes_per_row: float
    copy_gb_per_s: float
    decode_floor_s: float

    def tps(self, rows: float) -> float:
        """Tokens a second of decode steps of so many rows that do nothing but read."""
        step_bytes = 1e9 * self.weight_gb + rows * self.kv_bytes_per_row
        return rows * 1e9 * self.copy_gb_per_s / step_bytes


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """Figures of one back end at one batch size; None is "does not apply", never zero.

    `flagged_rounds` maps a round's number (from 1) to what was wrong with it; such a round enters
    no median. `error` is why there are no figures at all, `error_code` the exit code it stands for.
    """

    backend: str
    model_name: str
    lora_adapter: str | None
    max_batch_size: int
    max_seq_length: int
    n_prompts: int
    prompt_length: str
    max_new_tokens: int
    n_samples: int = 1
    lora_mode: str | None = None
    quantization: str | None = None
    capture_cudagraph: bool | None = None
    n_prompt_tokens: int | None = None
    n_decoded_tokens: int | None = None
    prefill_tokens: int | None = None
    wall_times_s: tuple[float, ...] = ()
    round_tokens: tuple[int, ...] = ()
    flagged_rounds: Mapping[int, str] = field(default_factory=dict)
    median_wall_s: float | None = None
    best_wall_s: float | None = None
    wall_spread_pct: float | None = None
    decode_tps_median: float | None = None
    decode_tps_best: float | None = None
    prefill_tps: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    decode_only_tps: float | None = None
    ttft_s: float | None = None
    ttft_ms: Mapping[str, float] | None = None
    step_ms: Mapping[str, float] | None = None
    load_s: float | None = None
    open_s: float | None = None
    gate_s: float | None = None
    compile_s: float | None = None
    capture_s: float | None = None
    warm_up_s: float | None = None
    refresh_s: float | None = None
    graph_replays: int | None = None
    eager_steps: int | None = None
    preemptions: int | None = None
    peak_memory_gb: float | None = None
    peak_reserved_gb: float | None = None
    roofline_pct: float | None = None
    roofline: Roofline | None = None
    gate: Gate | None = None
    probe: tuple[ProbeSample, ...] = ()
    profile: Profile | None = None
    sample_completions: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    error: str | None = None
    error_code: int | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """The values of KEY."""
        return tuple(vars(self)[name] for name in KEY)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One row against the baseline's row of the same key; `change_pct` below 0 is slower.

    `noise_pct` is how large a change of the medians the rounds of both explain by themselves, None
    where there is no telling. `inconclusive`: a loss beyond the threshold may hide in it.
    """

    label: str
    decode_tps_baseline: float | None
    decode_tps_now: float | None
    change_pct: float | None
    noise_pct: float | None = None
    regression: bool
    inconclusive: bool = False
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class BenchReport:
    """The whole run: what was asked, where it ran, the rows and the verdict.

    `ended_by` is what kept further rows from being measured: an interrupt, or what nobody foresaw.
    """

    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    started_at: str
    results: tuple[BenchResult, ...]
    comparisons: tuple[Comparison, ...] = ()
    agreements: tuple[Agreement, ...] = ()
    ended_by: BaseException | None = None

    @property
    def interrupted(self) -> bool:
        """Whether somebody ended the run."""
        return isinstance(self.ended_by, KeyboardInterrupt)

    @property
    def verdict(self) -> Verdict:
        """The worst of what happened; "flagged" is a round with other tokens than asked.

        "inconclusive" is a run that is ok but for noise beyond the threshold of its baseline.
        """
        if self.interrupted:
            return "interrupted"
        if any(row.gate is not None and row.gate.problem for row in self.results):
            return "wrong output"
        if any(agreement.wrong for agreement in self.agreements):
            return "wrong output"
        if self.ended_by is not None or any(row.error for row in self.results):
            return "failed"
        if any(comparison.regression for comparison in self.comparisons):
            return "regression"
        if any(row.flagged_rounds for row in self.results):
            return "flagged"
        hidden = any(comparison.inconclusive for comparison in self.comparisons)
        return "inconclusive" if hidden else "ok"

    @property
    def exit_code(self) -> int:
        """0 where no harm is found, the first error's if all failed, else 1; without `ended_by`."""
        codes = [row.error_code for row in self.results if row.error_code is not None]
        if self.verdict == "failed" and len(codes) == len(self.results):
            return codes[0]
        return 0 if self.verdict in ("ok", "inconclusive") else 1

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON document as plain containers."""
        error = None if self.interrupted else self.ended_by
        return {
            "schema_version": SCHEMA_VERSION,
            "command": "bench",
            "started_at": self.started_at,
            "config": dict(self.config),
            "environment": dict(self.environment),
            "definitions": dict(DEFINITIONS),
            "results": [asdict(row) for row in self.results],
            "agreements": [asdict(agreement) for agreement in self.agreements],
            "comparisons": [asdict(comparison) for comparison in self.comparisons],
            "verdict": self.verdict,
            "error": error and f"{type(error).__name__}: {error}",
        }

    def to_json(self) -> str:
        """Return the JSON document, indented, ending in a newline; refuses NaN and infinity."""
        return json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n"
