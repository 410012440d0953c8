"""What verify-drift does to an engine: a frozen, validated config."""

from __future__ import annotations

from dataclasses import dataclass

from flexinfer.errors import UsageError

MOST_CYCLES, MOST_PROMPTS, MOST_NOISE = 10_000, 1024, 1.0
"""Beyond these a run takes days, or the moved adapter is no policy any more."""


@dataclass(frozen=True, kw_only=True)
class DriftConfig:
    """How often the adapter is moved, how far, and what is rolled out.

    Each of `cycles` adds Gaussian noise of standard deviation `noise_scale` to every A, B and bias
    of the adapter under test (afresh, so the policy stays a sane one) and refreshes the engine.
    `n_prompts` prompts get `max_new_tokens` each; their lengths cross pages and windows.
    """

    cycles: int = 10
    noise_scale: float = 0.01
    n_prompts: int = 6
    max_new_tokens: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        """Check ranges; raises UsageError."""
        for flag, count in (
            ("--cycles", self.cycles),
            ("--n-prompts", self.n_prompts),
            ("--max-new-tokens", self.max_new_tokens),
        ):
            _check(count >= 1, flag, count, "1 or more")
        for flag, value, most in (
            ("--cycles", self.cycles, MOST_CYCLES),
            ("--n-prompts", self.n_prompts, MOST_PROMPTS),
        ):
            _check(value <= most, flag, value, f"at most {most}")
        sane = 0 < self.noise_scale <= MOST_NOISE
        _check(sane, "--noise-scale", self.noise_scale, f"above 0, at most {MOST_NOISE}")


def _check(ok: bool, flag: str, value: object, allowed: str) -> None:
    """Raise a UsageError that names the flag, the value and what is allowed."""
    if not ok:
        raise UsageError(f"{flag} is {value!r}; allowed: {allowed}")
