"""How far a share of few problems may be off."""

from __future__ import annotations

from math import sqrt

Z = 1.96
"""Standard deviations on either side that hold 95 % of a normal distribution."""


def margin(share: float, count: int) -> float:
    """Return half the width of the 95 % interval of a share of `count` independent problems.

    Wilson's score interval (E. B. Wilson, J. Am. Stat. Assoc. 22, 1927, p. 209), which has a width
    at 0 and 1, too.
    """
    spread = sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    return Z / (1 + Z**2 / count) * spread
