"""Seeds of samples: functions of what the user gave, never of the batch."""

from __future__ import annotations

_MASK = 2**64 - 1


def mix(*values: int) -> int:
    """Hash integers to [0, 2**63) by chained SplitMix64 steps (Steele et al. 2014)."""
    state = 0
    for value in values:
        state = (state ^ (value & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state >> 1
