"""What a plan found: the parts, whether they fit, and the line that says so."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from flexinfer.core.sizes import human
from flexinfer.errors import NotEnoughMemory
from flexinfer.tasks.environment import document
from flexinfer.tasks.grpo.plan.batch import BatchPlan
from flexinfer.tasks.grpo.plan.fit import Part, needed
from flexinfer.tasks.grpo.plan.passing import KV


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run would do and need; bytes throughout.

    The cache gets `granted`, in which `at_once` of `kv.sequences` sequences fit at their longest:
    the others wait. `least`, with KV for `least_at_once` of them, must be there for a run to start;
    `wanted` holds all. The last of `parts` is the cache that the verdict counts: what is granted,
    or of a run that cannot start the least. `available` is None where there is no such device.
    `scored_at_once` held-out problems are answered at a time, 0 where none are.
    """

    config: dict[str, Any]
    started_at: str
    model_name: str
    device: str
    dtype: str
    batch: BatchPlan
    parts: tuple[Part, ...]
    kv: KV
    available: int | None
    least: int
    least_at_once: int
    wanted: int
    granted: int
    at_once: int
    scored_at_once: int
    hints: tuple[str, ...]
    notices: tuple[str, ...]

    @property
    def fits(self) -> bool | None:
        """Whether the run can start; None where there is no device to hold it against.

        It must have room for one sequence at least.
        """
        if not self.at_once:
            return False
        return None if self.available is None else self.least <= self.available

    @property
    def exit_code(self) -> int:
        """0, or NotEnoughMemory's where it does not fit."""
        return NotEnoughMemory.exit_code if self.fits is False else 0

    @property
    def verdict(self) -> str:
        """Whether it fits, in a line: what is counted, and how much KV is in it."""
        if self.available is None:
            what = self._granted if self.at_once else self._no_sequence
            return f"{what}; there is no CUDA device here to hold it against"
        there = f"{human(self.available)} available on {self.device}"
        asked = self.config["engine"]["kv_memory"]
        if asked is not None and asked > self.available:
            return f"does not fit: --kv-memory asks for {human(asked)}, {there}"
        if self.least > self.available:
            even = "even " if self.least_at_once == 1 < self.kv.sequences else ""
            needs = f"{human(self.least)}, {even}{self._with_kv(self.least_at_once)}"
            return f"does not fit: needs {needs}; {there}"
        return f"{f'fits: {self._granted}' if self.at_once else self._no_sequence}; {there}"

    @property
    def _granted(self) -> str:
        """Say what is needed with the cache that is granted."""
        waits = ", the others wait" if self.at_once < self.kv.sequences else ""
        *parts, cache = self.parts
        return f"needs {human(needed(parts, cache))}, {self._with_kv(self.at_once)}{waits}"

    @property
    def _no_sequence(self) -> str:
        """Say that the cache is too small for one sequence."""
        one = f"one sequence of {self.kv.longest} tokens needs {human(self.kv.least)}"
        return f"does not fit: {human(self.granted)} for the KV cache, {one}"

    def _with_kv(self, sequences: int) -> str:
        """Say for how many sequences at a time a sum has KV in it."""
        few = "all" if sequences == self.kv.sequences else f"{sequences} of"
        return f"with KV for {few} {self.kv.sequences} sequences of {self.kv.longest} tokens"

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON document as plain containers."""
        own = {k: v for k, v in asdict(self).items() if k not in ("config", "started_at")}
        own |= {"dry_run": True, "fits": self.fits, "verdict": self.verdict}
        own["kv"] |= {"wanted": self.kv.wanted, "least": self.kv.least}
        return document("train-grpo", self.config, self.started_at) | own
