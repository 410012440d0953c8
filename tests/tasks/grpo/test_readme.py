"""README's own lines for who owns a GRPOTrainer, run as they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parents[3] / "README.md"


def snippet(importing: str) -> str:
    """Return the one python block of README that imports from a module."""
    blocks = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    (found,) = (block for block in blocks if f"from {importing} import" in block)
    return str(found)


def test_a_trainer_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(snippet("flexinfer.trl"), names)
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if re.match(r"\d ", line)]
    assert [step for step, _, _ in rows] == ["1", "2"]
    assert all(0.1 < float(reward) <= 1 for _, reward, _ in rows)
    close = 1e-3 if names["model"].device.type == "cpu" else 0.5  # bf16 on a GPU
    assert all(0 <= float(gap) < close for _, _, gap in rows)
    assert names["trainer"].state.global_step == 2
    assert names["rollout"].rollout is None  # closed
    text = README.read_text()
    logged = {key for key in names["trainer"].state.log_history[0] if key.startswith("sampling/")}
    for name in {key.rsplit("/", 1)[0] for key in logged}:
        assert f"`{name}/" in text
