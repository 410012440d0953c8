"""What bench measures: a frozen, validated config, and the texts a command line hands over."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from flexinfer.backends.choose import check_backend
from flexinfer.config import SamplingParams, parse_size
from flexinfer.errors import EnvironmentUnfit, UsageError
from flexinfer.tasks.bench.lanes.weights import check_weights
from flexinfer.tasks.charts.write import check_kind

N_PROMPTS, MOST_AT_ONCE = 64, 256
"""Prompts of a round, and sequences decoded at once, where nobody says."""
MOST_TOKENS = 2**26
"""Prompt tokens of a round that can be asked for: they are drawn one by one."""


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """The workload, the rounds, what to sweep and what to hold the outcome against.

    `prompt_length` is `LOW:HIGH` or one number, in tokens, both ends included; several, with
    commas between them, are a sweep. `n_samples` are decoded from each prompt. `batch_sizes`,
    `new_tokens` and `weights` (see bench.weights) are sweeps too; empty is the engine config's own,
    `max_new_tokens`, and the weights as they were asked for.
    `n_prompts` None is N_PROMPTS for one batch size, and in a sweep what fills each (`prompts_at`).
    `temperature` 0 is greedy. `gate`: figures only of an engine whose output was checked.
    `profile`: after the rounds, say where a step's time goes (of flex only), and leave the trace in
    `trace_path`. `tune`: before them, find the own kernels' tiles for this model and device, and
    keep them for later processes. `fail_below` is the percent of decode tokens a second a run may
    lose against `baseline` (a file bench wrote).
    """

    backends: tuple[str, ...] = ("flex",)
    n_prompts: int | None = None
    n_samples: int = 1
    n_rounds: int = 5
    max_new_tokens: int = 512
    prompt_length: str = "64:256"
    ignore_eos: bool = True
    temperature: float = 1.0
    batch_sizes: tuple[int, ...] = ()
    new_tokens: tuple[int, ...] = ()
    weights: tuple[str, ...] = ()
    baseline: str | None = None
    fail_below: float | None = None
    stats_path: str | None = None
    report_file: str | None = None
    seed: int = 0
    gate: bool = True
    profile: bool = False
    trace_path: str | None = None
    tune: bool = False

    def __post_init__(self) -> None:
        """Check every value; raises UsageError, or EnvironmentUnfit without a package."""
        for flag, count in (
            ("--n-prompts", 1 if self.n_prompts is None else self.n_prompts),
            ("--n-samples", self.n_samples),
            ("--n-rounds", self.n_rounds),
            *(("--max-new-tokens", count) for count in (self.max_new_tokens, *self.new_tokens)),
        ):
            _check(count >= 1, flag, count, "1 or more")
        _check(bool(self.backends), "--backend", self.backends, "at least one back end")
        _distinct("--backend", self.backends)
        _distinct("--max-batch-size", self.batch_sizes)
        _distinct("--max-new-tokens", self.new_tokens)
        _distinct("--prompt-length", tuple(_parts(self.prompt_length)))
        check_weights(self.weights)
        _check(
            all(size >= 1 for size in self.batch_sizes),
            "--max-batch-size",
            self.batch_sizes,
            "numbers of 1 or more",
        )
        for count in (self.max_new_tokens, *self.new_tokens):
            SamplingParams(temperature=self.temperature, max_new_tokens=count)
        _check(0 <= self.seed < 2**62, "--seed", self.seed, "0 to 2**62 - 1")
        self._check_baseline()
        if self.n_prompts is None and len(self.batch_sizes) < 2:
            object.__setattr__(self, "n_prompts", N_PROMPTS)
        self._check_workload()
        self._check_backends()
        if self.report_file is not None:
            check_kind(self.report_file)
        self._check_profile()

    def _check_backends(self) -> None:
        """Check their names; among several a package that is missing is a row of its own."""
        for name in self.backends:
            try:
                check_backend(name)
            except EnvironmentUnfit:
                if len(self.backends) == 1:
                    raise

    def _check_workload(self) -> None:
        """Check that the prompts can be drawn in a sensible time."""
        most = max(map(self.prompts_at, self.batch_sizes or (1,)))
        longest = max(workload.lengths[1] for workload in self.workloads)
        if most * longest > MOST_TOKENS:
            raise UsageError(
                f"{most} prompts of up to {longest} tokens are no workload; allowed: "
                f"{MOST_TOKENS} prompt tokens",
                hint="lower --n-prompts, --max-batch-size or --prompt-length",
            )

    def _check_profile(self) -> None:
        """Check that there are decode steps to profile, of the engine that can be."""
        if self.profile and min(self.new_tokens or (self.max_new_tokens,)) < 2:
            raise UsageError("--profile needs --max-new-tokens of 2 or more: else nothing decodes")
        if self.profile and self.backends != ("flex",):
            raise UsageError("--profile is for --backend flex alone")
        if self.profile and self.rows > 1:
            raise UsageError(
                "--profile is for one row, not for a sweep: the profiler stays in the process, and "
                "figures after it would not be those without it"
            )

    def _check_baseline(self) -> None:
        """Check the threshold and that it has something to be held against."""
        limit = self.fail_below
        ok = limit is None or 0.0 <= limit < 100.0
        _check(ok, "--fail-below", limit, "a percentage from 0 to under 100")
        if limit is not None and self.baseline is None:
            raise UsageError(
                "--fail-below has nothing to compare with",
                hint="give --baseline FILE, a file that --stats-path wrote",
            )

    @property
    def own_batch_size(self) -> int:
        """The batch size where none is given: all sequences of a round, MOST_AT_ONCE at most."""
        return min(self.sequences, MOST_AT_ONCE)

    @property
    def sequences(self) -> int:
        """Prompts of a round times samples of each."""
        return (self.n_prompts or N_PROMPTS) * self.n_samples

    @property
    def workloads(self) -> tuple[BenchConfig, ...]:
        """This config for each prompt length and number of new tokens, with one of each."""
        parts = _parts(self.prompt_length)
        if len(parts) == 1 and not self.new_tokens:
            return (self,)
        return tuple(
            replace(self, prompt_length=part, max_new_tokens=count, new_tokens=())
            for part in parts
            for count in self.new_tokens or (self.max_new_tokens,)
        )

    @property
    def rows(self) -> int:
        """How many rows one back end has."""
        lengths = len(_parts(self.prompt_length)) * len(self.new_tokens or (1,))
        return lengths * len(self.batch_sizes or (1,)) * len(self.weights or (1,))

    def prompts_at(self, batch_size: int) -> int:
        """Return how many prompts a round of that batch size has."""
        return self.n_prompts or -(-batch_size // self.n_samples)

    @property
    def lengths(self) -> tuple[int, int]:
        """Shortest and longest prompt of one workload, in tokens, both included.

        Raises UsageError.
        """
        match = re.fullmatch(r"\s*(\d{1,9})\s*(?::\s*(\d{1,9})\s*)?", self.prompt_length)
        low = int(match.group(1)) if match else 0
        high = int(match.group(2) or low) if match else 0
        _check(1 <= low <= high, "--prompt-length", self.prompt_length, "LOW:HIGH, as in 64:256")
        return low, high


def parse_batch_sizes(text: str) -> tuple[int, ...]:
    """Read `64` or `1,8,32` (the value of --max-batch-size); raises UsageError."""
    parts = [part.strip() for part in text.split(",")]
    _check(
        all(re.fullmatch("[0-9]{1,9}", part) and int(part) for part in parts),
        "--max-batch-size",
        text,
        "a number, or several as in 1,8,32",
    )
    return tuple(int(part) for part in parts)


def parse_new_tokens(text: str) -> tuple[int, ...]:
    """Read `512` or `128,512,4k` (the value of --max-new-tokens); raises UsageError."""
    return tuple(parse_size(part, "--max-new-tokens") for part in text.split(","))


def _parts(lengths: str) -> list[str]:
    """Return each workload's `--prompt-length`."""
    return [part.strip() for part in lengths.split(",")]


def _check(ok: bool, flag: str, value: object, allowed: str) -> None:
    """Raise a UsageError that names the flag, the value and what is allowed."""
    if not ok:
        raise UsageError(f"{flag} is {value!r}; allowed: {allowed}")


def _distinct(flag: str, values: tuple[object, ...]) -> None:
    """Raise where a value is named twice: two rows of one key cannot be told apart."""
    _check(len(set(values)) == len(values), flag, list(values), "each value once")
