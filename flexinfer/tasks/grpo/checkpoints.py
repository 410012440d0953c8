"""What a run leaves in its output folder, and how a later one finds it again."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flexinfer.config import ModelOptions
from flexinfer.errors import UsageError, WriteFailed, one_line
from flexinfer.tasks.charts.write import check_report
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.stats_file import check_stats

if TYPE_CHECKING:
    from transformers import Trainer

SETTINGS = "train_grpo.json"
ADAPTER = "adapter_model.safetensors"
FREE = frozenset(
    {"max_steps", "save_steps", "output_dir", "resume", "report", "report_to", "stats_path"}
)
"""What a resumed run may choose anew."""


def settings(options: ModelOptions, config: GrpoConfig) -> dict[str, Any]:
    """Return what a resumed run must have in common with the one that it goes on with."""
    own = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in FREE}
    return json.loads(json.dumps({"model": asdict(options), "grpo": own}, default=str))  # type: ignore[no-any-return]


def check_outputs(config: GrpoConfig) -> None:
    """Raise UsageError, WriteFailed or EnvironmentUnfit for a file that could not be written."""
    if config.stats_path is not None:
        check_stats(config.stats_path)
    if config.report is not None:
        check_report(str(config.report))


def found(options: ModelOptions, config: GrpoConfig) -> Path | None:
    """Return the checkpoint in the output folder to go on from, None for a new run.

    Raises UsageError where a new run would write over an old one, where there is nothing to resume
    or nothing left to do, and where the settings differ. Nothing is written.
    """
    folder = config.output_dir
    last = newest(folder)
    if not config.resume:
        _check_unused(folder, last)
        return None
    if last is None:
        raise UsageError(
            f"--resume: {folder} holds no checkpoint", hint="leave --resume out to begin anew"
        )
    _check_same(folder, settings(options, config))
    if step_of(last) >= (config.max_steps or 0):
        raise UsageError(
            f"--resume: the run in {folder} has taken {step_of(last)} steps already",
            hint="raise --max-steps to go on with it",
        )
    return last


def begin(options: ModelOptions, config: GrpoConfig) -> None:
    """Make the output folder and write the settings into it; raises WriteFailed."""
    folder = config.output_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(settings(options, config), indent=2) + "\n"
        (folder / SETTINGS).write_text(text, encoding="utf-8")
    except OSError as error:
        raise WriteFailed(f"cannot write --output-dir {folder}: {error.strerror}") from error


def step_of(checkpoint: Path) -> int:
    """Return the optimizer steps that a checkpoint has taken."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def save(trainer: Trainer, folder: Path, base: str) -> Path:
    """Write the adapter of model `base`, in PEFT's format, and the tokenizer; return where.

    Raises WriteFailed.
    """
    try:
        trainer.save_model(str(folder))
        _name_base(folder / "adapter_config.json", base)
    except OSError as error:
        raise WriteFailed(f"cannot write --output-dir {folder}: {one_line(error)}") from error
    return folder


def _name_base(path: Path, base: str) -> None:
    """Say in an adapter's config which model it is of, not where that lay.

    Had PEFT known it by that name, it would ask the hub for its vocabulary at every checkpoint.
    """
    config = json.loads(path.read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = base
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def newest(folder: Path) -> Path | None:
    """Return the complete checkpoint of the most steps; HF writes its state last."""
    found = [
        path for path in folder.glob("checkpoint-*") if (path / "trainer_state.json").is_file()
    ]
    numbered = [path for path in found if path.name.removeprefix("checkpoint-").isdecimal()]
    return max(numbered, key=step_of, default=None)


def _check_unused(folder: Path, last: Path | None) -> None:
    """Raise UsageError where the folder holds what a run has made."""
    adapter = folder / ADAPTER
    made = last or (adapter if adapter.exists() else None)
    if made is not None:
        raise UsageError(
            f"--output-dir {folder} holds a run already ({made.name})",
            hint="--resume goes on with it; or choose another folder",
        )


def _check_same(folder: Path, wanted: dict[str, Any]) -> None:
    """Raise UsageError that names the first setting in which the run of a folder differs."""
    try:
        made = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        pairs = [
            (f"--{name.replace('_', '-')}", made[part][name], value)
            for part, values in wanted.items()
            for name, value in values.items()
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--resume: {folder / SETTINGS} cannot be read: {error}") from error
    for flag, was, value in pairs:
        if was != value:
            raise UsageError(f"--resume: the run was made with {flag} {was}, not {value}")
