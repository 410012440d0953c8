"""What verify-drift reports: the checks, and the document around them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flexinfer.tasks.drift.checks import Check
from flexinfer.tasks.environment import document


@dataclass(frozen=True, kw_only=True)
class DriftReport:
    """The outcome; `mode` is such as bf16+lora, `trainer` the gaps by state of the adapter.

    An inference hash is the sha256 over inference weights, ids and log-probabilities.
    """

    config: Mapping[str, Any]
    started_at: str
    mode: str
    model_name: str
    dtype: str
    lora_mode: str
    adapter: str
    adapter_sha: str | None
    n_iters: int
    noise_scale: float
    base_hash_before: str
    base_hash_after: str
    inference_hash_initial_merged: str
    inference_hash_after_restore: str
    inference_deterministic: bool
    prompt_tokens: tuple[int, ...]
    trainer: Mapping[str, Any]
    checks: tuple[Check, ...]
    notices: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether every check is passed."""
        return all(check.passed for check in self.checks)

    @property
    def exit_code(self) -> int:
        """0, or 1 where a check fails."""
        return int(not self.passed)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON document as plain containers."""
        own = {k: v for k, v in vars(self).items() if k not in ("config", "started_at")}
        own |= {
            "base_bit_identical": self.base_hash_before == self.base_hash_after,
            "checks": [asdict(check) for check in self.checks],
            "passed": self.passed,
        }
        return document("verify-drift", dict(self.config), self.started_at) | own

    def to_json(self) -> str:
        """Return the JSON document, indented, ending in a newline; no NaN, no infinity."""
        return json.dumps(_finite(self.as_dict()), indent=2, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """Return plain containers with None for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value
