"""Bytes of memory as people read them, in binary units."""

from __future__ import annotations


def human(n_bytes: float) -> str:
    """Return bytes as GiB, MiB or KiB, one digit after the point."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes / 2**10:.1f} KiB"
