"""What tests of doctor share beside `fakes`."""

from __future__ import annotations

import pytest

from flexinfer import unsupported


@pytest.fixture
def nothing_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask of a version that has every mode and option, as packages are judged for those."""
    monkeypatch.setattr(unsupported, "UNSUPPORTED", frozenset())
