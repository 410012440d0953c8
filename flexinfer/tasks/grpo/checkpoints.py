"""What a run leaves in its output folder, and how a later one finds it again."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from flexinfer.config import ModelOptions
from flexinfer.errors import UsageError, WriteFailed, one_line
from flexinfer.tasks.charts.write import check_report
from flexinfer.tasks.grpo import processes
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.folder import FLAG, ahead, check_folder
from flexinfer.tasks.grpo.stats_file import check_stats
from flexinfer.tasks.output_file import write_whole

if TYPE_CHECKING:
    from transformers import Trainer

SETTINGS = "train_grpo.json"
ADAPTER = "adapter_model.safetensors"
FREE = frozenset(
    {"max_steps", "save_steps", "output_dir", "resume", "report", "report_to", "stats_path"}
)
"""What a resumed run may choose anew."""


def settings(options: ModelOptions, config: GrpoConfig, data: str) -> dict[str, Any]:
    """Return what a resumed run must have in common with the one that it goes on with.

    `data` is the digest of the problems.
    """
    own = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in FREE}
    launch = {"num_processes": processes.count()}
    made = {"model": asdict(options), "grpo": own, "launch": launch, "data": data}
    plain: dict[str, Any] = json.loads(json.dumps(made, default=str))
    return plain


def check_outputs(config: GrpoConfig) -> None:
    """Raise UsageError, WriteFailed or EnvironmentUnfit for a file that could not be written."""
    check_folder(config.output_dir)
    if config.stats_path is not None:
        check_stats(ahead(config.stats_path, config.output_dir))
    if config.report is not None:
        check_report(str(ahead(config.report, config.output_dir)))


def found(options: ModelOptions, config: GrpoConfig, data: str) -> Path | None:
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
    _check_same(folder, settings(options, config, data))
    if step_of(last) >= (config.max_steps or 0):
        raise UsageError(
            f"--resume: the run in {folder} has taken {step_of(last)} steps already",
            hint="raise --max-steps to go on with it",
        )
    return last


def begin(options: ModelOptions, config: GrpoConfig, data: str) -> None:
    """Write the settings into the output folder; raises WriteFailed."""
    text = json.dumps(settings(options, config, data), indent=2) + "\n"
    write_whole(config.output_dir / SETTINGS, text.encode(), FLAG)


def step_of(checkpoint: Path) -> int:
    """Return the optimizer steps that a checkpoint has taken."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def save(trainer: Trainer, folder: Path, base: str) -> Path:
    """Write the adapter of model `base`, in PEFT's format, and the tokenizer; return where.

    Raises WriteFailed.
    """
    try:
        trainer.save_model(str(folder))
        if trainer.args.should_save:
            _name_base(folder / "adapter_config.json", base)
    except (OSError, SafetensorError) as error:
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
    """Return the complete checkpoint of the most steps."""
    numbered = [
        path
        for path in folder.glob("checkpoint-*")
        if path.name.removeprefix("checkpoint-").isdecimal() and _is_complete(path)
    ]
    return max(numbered, key=step_of, default=None)


def _is_complete(checkpoint: Path) -> bool:
    """Tell whether nothing of a checkpoint is missing: HF would go on without, and say nothing.

    Its state is written last, and is cut short where that was broken off.
    """
    try:
        state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    one = processes.count() == 1
    generators = "rng_state.pth" if one else f"rng_state_{processes.rank()}.pth"
    parts = (ADAPTER, "optimizer.pt", "scheduler.pt", generators)
    whole = all((checkpoint / name).is_file() for name in parts)
    return whole and state["global_step"] == step_of(checkpoint)


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
            for part in ("model", "grpo", "launch")
            for name, value in wanted[part].items()
        ]
        same_data = made["data"] == wanted["data"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--resume: {folder / SETTINGS} cannot be read: {error}") from error
    for flag, was, value in pairs:
        if was != value:
            raise UsageError(f"--resume: the run was made with {flag} {was}, not {value}")
    if not same_data:
        raise UsageError(
            f"--resume: the rows of --dataset {wanted['grpo']['dataset']} are not those that the "
            "run was made with",
            hint="put them back, or begin anew in another folder",
        )
