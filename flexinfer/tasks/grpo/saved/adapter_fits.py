"""Whether a checkpoint's adapter is the run's: PEFT leaves out what it has no place for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import safe_open

from flexinfer.errors import UsageError
from flexinfer.tasks.grpo.saved.whole import ADAPTER


def check_adapter(model: Any, checkpoint: Path) -> None:
    """Raise UsageError where names or shapes of a checkpoint's adapter are not a PeftModel's."""
    from peft import get_peft_model_state_dict

    wanted = {name: [*t.shape] for name, t in get_peft_model_state_dict(model).items()}
    with safe_open(checkpoint / ADAPTER, "pt") as file:
        found = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - no dict
    wrong = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
    if wrong:
        raise UsageError(
            f"--resume: {checkpoint / ADAPTER} is not of this run's adapter: {wrong[0]} is "
            f"{found.get(wrong[0], 'missing')}, to be {wanted.get(wrong[0], 'absent')}",
            hint="remove that checkpoint, and --resume goes on from an older one",
        )
