"""How large a change between two medians of rounds may be without meaning anything.

The scatter of a run is the median absolute deviation of its rounds' rates, so that one round which
something interrupted does not hide a loss; times 1.4826 it estimates a standard deviation, where
rounds are few times OF_FEW too (Croux and Rousseeuw 1992, "Time-efficient algorithms for two highly
robust estimators of scale"). That over the root of the number of rounds, times 1.2533, is the
standard error of a median (of Gaussian rounds). Two of them, of the difference, are the noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

OF_DEVIATION, OF_MEDIAN, ERRORS = 1.4826, 1.2533, 2.0
OF_FEW = (1.196, 1.495, 1.363, 1.206, 1.200, 1.140, 1.129, 1.107)
"""What the deviation of 2, 3, ... 9 rounds is too small by; of more, n / (n - 0.8)."""


def round_rates(row: Mapping[str, Any]) -> list[float]:
    """Return tokens a second of each round of a row that counts; [] where a file does not tell."""
    tokens, walls = row.get("round_tokens") or (), row.get("wall_times_s") or ()
    flagged = {int(number) for number in row.get("flagged_rounds") or {}}
    if len(tokens) != len(walls):
        return []
    rounds = enumerate(zip(tokens, walls, strict=True), 1)
    return [count / wall for number, (count, wall) in rounds if number not in flagged and wall > 0]


def noise_pct(now: Sequence[float], before: Sequence[float]) -> float | None:
    """Return the noise of a change from `before` to `now`, in percent; None for single rounds."""
    if min(len(now), len(before)) < 2:
        return None
    return 100.0 * ERRORS * math.hypot(_error(now), _error(before))


def _error(rates: Sequence[float]) -> float:
    """Return the standard error of the median of rates, relative to it."""
    middle = median(rates)
    count, deviation = len(rates), median(abs(rate - middle) for rate in rates)
    few = OF_FEW[count - 2] if count - 2 < len(OF_FEW) else count / (count - 0.8)
    return few * OF_DEVIATION * OF_MEDIAN * deviation / math.sqrt(count) / middle
