"""What a run leaves in its output folder, and how a later one finds it again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from filecmp import cmp
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from flexinfer.config import ModelOptions
from flexinfer.errors import UsageError, WriteFailed, one_line
from flexinfer.tasks.grpo import processes
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.saved.folder import FLAG
from flexinfer.tasks.grpo.saved.whole import ADAPTER, ADAPTER_CONFIG, damaged, step_of, unfinished
from flexinfer.tasks.output_file import write_whole

if TYPE_CHECKING:
    from transformers import Trainer

SETTINGS = "train_grpo.json"
CARD = "README.md"
FREE = frozenset(
    {"max_steps", "save_steps", "eval_size", "gradient_checkpointing", "output_dir", "resume"}
    | {"report", "report_to", "stats_path"}
)
"""What a resumed run may choose anew."""


def settings(options: ModelOptions, config: GrpoConfig, data: str | None) -> dict[str, Any]:
    """Return what a resumed run must have in common with the one that it goes on with.

    `data` is the digest of the problems, None where nobody has them.
    """
    own = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in FREE}
    launch = {"num_processes": processes.count()}
    made = {"model": asdict(options), "grpo": own, "launch": launch, "data": data}
    plain: dict[str, Any] = json.loads(json.dumps(made, default=str))
    return plain


def found(
    options: ModelOptions,
    config: GrpoConfig,
    data: str | None,
    notice: Callable[[str], None] = lambda line: None,
) -> Path | None:
    """Return the checkpoint in the output folder to go on from, None for a new run.

    It has taken all steps where only the adapter is still to be saved or scored. `notice` hears of
    it, and of newer ones whose writing was broken off. Raises UsageError where a new run would
    write over an old one, where there is nothing to resume or nothing left to do, where the
    settings differ, and for a damaged checkpoint. Nothing is written. Without `data` the problems
    are not compared.
    """
    folder = config.output_dir
    last = newest(folder)
    if not config.resume:
        _check_unused(folder, last)
        return None
    broken = _broken_off(folder, last)
    if last is None:
        raise UsageError(
            f"--resume: {folder} holds no checkpoint" + "".join(f"; {line}" for line in broken[:1]),
            hint="leave --resume out to begin anew",
        )
    _check_same(folder, settings(options, config, data))
    _check_steps_left(config, last)
    _check_readable(folder, last)
    for line in broken:
        notice(line)
    notice(f"going on from {folder / last.name}")
    return last


def is_over(config: GrpoConfig, checkpoint: Path) -> bool:
    """Tell whether a checkpoint has taken every step of a run, so that it is to be saved alone."""
    return step_of(checkpoint) == config.max_steps


def begin(options: ModelOptions, config: GrpoConfig, data: str) -> None:
    """Write the settings into the output folder; raises WriteFailed."""
    text = json.dumps(settings(options, config, data), indent=2) + "\n"
    write_whole(config.output_dir / SETTINGS, text.encode(), FLAG)


def save(trainer: Trainer, folder: Path, base: str) -> Path:
    """Write the adapter of model `base`, in PEFT's format, and the tokenizer; return where.

    Raises WriteFailed.
    """
    try:
        trainer.save_model(str(folder))
        if trainer.args.should_save:
            _name_base(folder / ADAPTER_CONFIG, base)
            (folder / CARD).write_text(_card(base, folder), encoding="utf-8")
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


def _card(base: str, folder: Path) -> str:
    """Return a card in place of PEFT's, which knows neither the model nor what made the adapter."""
    return (
        f"---\nbase_model: {json.dumps(base)}\nlibrary_name: peft\ntags: [lora, grpo]\n---\n\n"
        f"An adapter of {base}, trained by `flexinfer train-grpo`; how is in {SETTINGS}.\n\n"
        f"    flexinfer generate --model {quote(base)} --adapter {quote(folder.name)} PROMPT\n"
    )


def newest(folder: Path) -> Path | None:
    """Return the checkpoint of the most steps of those that were written to their end."""
    whole = (path for path in _numbered(folder) if unfinished(path) is None)
    return max(whole, key=step_of, default=None)


def _numbered(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, whole or not, those of the most steps first."""
    every = folder.glob("checkpoint-*")
    named = (path for path in every if path.name.removeprefix("checkpoint-").isdecimal())
    return sorted(named, key=step_of, reverse=True)


def _broken_off(folder: Path, last: Path | None) -> list[str]:
    """Say of each checkpoint newer than `last` why it is not whole."""
    newer = (path for path in _numbered(folder) if last is None or step_of(path) > step_of(last))
    return [f"{path.name} was not written to its end ({unfinished(path)})" for path in newer]


def _check_steps_left(config: GrpoConfig, last: Path) -> None:
    """Raise UsageError where a run has taken its steps, and its adapter is saved and scored."""
    steps = step_of(last)
    if steps < (config.max_steps or 0):
        return
    if is_over(config, last) and not (_is_saved(config.output_dir, last) and _is_scored(config)):
        return
    raise UsageError(
        f"--resume: the run in {config.output_dir} has taken {steps} steps already",
        hint="raise --max-steps to go on with it",
    )


def _is_saved(folder: Path, last: Path) -> bool:
    """Tell whether the adapter in a folder is that of its last checkpoint."""
    try:
        json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        return cmp(folder / ADAPTER, last / ADAPTER, shallow=False)
    except (OSError, ValueError, RecursionError):
        return False


def _is_scored(config: GrpoConfig) -> bool:
    """Tell whether a run's statistics, where it left any here, are those of its end."""
    try:
        made = json.loads(config.stats_file.read_text(encoding="utf-8"))
        return made["accuracy_before"] is None or made["accuracy_after"] is not None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return True


def _check_readable(folder: Path, last: Path) -> None:
    """Raise UsageError where a file of the checkpoint is damaged: whose it is decides what to do.

    Going on from an older one would write over what is still good of this one.
    """
    found = damaged(last)
    if found is None:
        return
    path, why = found
    before = (p for p in _numbered(folder) if step_of(p) < step_of(last))
    older = next((p for p in before if unfinished(p) is None and damaged(p) is None), None)
    raise UsageError(
        f"--resume: {path} is damaged: {why}",
        hint=f"move {last} away to go on from {older.name}"
        if older is not None
        else "put it back from a copy, or begin anew in another folder",
    )


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
        same_data = wanted["data"] in (made["data"], None)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
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
