"""When free slots are filled again: decoding stands still while prompts are computed.

A prefill step costs nearly the same for one prompt as for several, so refills go together.
"""

from __future__ import annotations

SHARE = 8
"""Free slots are filled at once when they are this fraction (1/8) of all."""
STEPS = 3
"""What a prefill step of a few prompts is taken to cost, in decode steps: an estimate."""


class Refill:
    """The ski-rental rule: wait until the free slots have idled for as long as a refill takes."""

    def __init__(self, slots: int) -> None:
        """Decide for `slots` slots in all."""
        self._slots = slots
        self._idle = 0

    def due(self, free: int, waiting: int) -> bool:
        """Whether to fill `free` slots before the next decode step; call once a step."""
        self._idle += free
        waited = self._idle >= STEPS * self._slots
        return waiting <= free or free * SHARE >= self._slots or waited

    def done(self) -> None:
        """Begin to count anew: slots were filled."""
        self._idle = 0
