"""Compare version texts without a library, since a broken installation may lack one."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

Release = tuple[int, ...]
_COMPARE: Mapping[str, Callable[[Release, Release], bool]] = MappingProxyType(
    {
        ">=": operator.ge,
        "<=": operator.le,
        ">": operator.gt,
        "<": operator.lt,
        "==": operator.eq,
        "!=": operator.ne,
    }
)


def release(version: str) -> Release:
    """Return the leading numbers: "2.13.0+cpu" is (2, 13, 0), "4.0.0b36" is (4, 0, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", version.strip())
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def older(version: str, minimum: Release) -> bool:
    """Whether `version` is older than `minimum`; missing parts count as zero, unknown is not."""
    found, wanted = _padded(release(version), minimum)
    return release(version) != () and found < wanted


def dotted(numbers: Release) -> str:
    """Write a release as text."""
    return ".".join(map(str, numbers))


def bounds(requirements: Sequence[str], name: str) -> str | None:
    """Return what requirement lines ask of `name`, such as "<=0.31.0,>=0.22.0"; None if nothing."""
    pattern = re.compile(rf"{re.escape(name)}(?:\[[^]]*\])?\s*\(?([<>=!][^;)]*)", re.IGNORECASE)
    for line in requirements:
        if match := pattern.match(line.strip()):
            return match.group(1).strip()
    return None


def within(version: str, asked: str) -> bool:
    """Whether `version` meets every comparison of `asked`; kinds not known here count as met."""
    for part in asked.split(","):
        match = re.fullmatch(r"\s*(>=|<=|==|!=|>|<)\s*([\w.+]+)\s*", part)
        if match and not _COMPARE[match[1]](*_padded(release(version), release(match[2]))):
            return False
    return True


def _padded(left: Release, right: Release) -> tuple[Release, Release]:
    """Fill the shorter one with zeros."""
    length = max(len(left), len(right))
    return left + (0,) * (length - len(left)), right + (0,) * (length - len(right))
