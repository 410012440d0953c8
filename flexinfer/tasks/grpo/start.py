"""From a run that was looked at ahead to one that can begin: its parts, and its files."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import torch

from flexinfer.backends.base.options import RolloutOptions
from flexinfer.config import EngineConfig, ModelOptions, Report
from flexinfer.tasks.grpo.ahead import Ahead
from flexinfer.tasks.grpo.arguments import checked
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.processes import is_first, joined
from flexinfer.tasks.grpo.records.rollouts_file import NAME, RolloutsFile
from flexinfer.tasks.grpo.saved.checkpoints import begin, found
from flexinfer.tasks.grpo.saved.folder import made
from flexinfer.tasks.grpo.saved.unbegun import files_unmade, folder_unmade
from flexinfer.tasks.grpo.setup import Parts, assemble
from flexinfer.weights.load import load
from flexinfer.weights.place import choose_device


def set_up(
    options: ModelOptions,
    engine: EngineConfig,
    config: GrpoConfig,
    rollout_options: RolloutOptions,
    ahead: Ahead,
    report: Report,
    stack: ExitStack,
    widen: bool,
) -> Parts:
    """Meet the other processes, load the model and assemble the rest; `stack` ends it all.

    Raises as its parts do.
    """
    if is_first():
        stack.enter_context(folder_unmade(config.output_dir))  # the trainer may make it
    stack.enter_context(joined(options.device))
    checked(config, torch.float32, choose_device(options.device)[0])  # weights may take minutes
    loaded = load(replace(options, lora_mode=None), report)  # the adapter comes later
    work = ahead.work
    return assemble(loaded, work, options, engine, config, rollout_options, report, stack, widen)


def begin_files(
    options: ModelOptions, config: GrpoConfig, ahead: Ahead, stack: ExitStack
) -> RolloutsFile | None:
    """Take the output folder and write the settings; return the file of rollouts, open.

    None of any process but the first. Raises WriteFailed, or UsageError where another run took the
    folder meanwhile.
    """
    if not is_first():
        return None
    stack.enter_context(made(config.output_dir))
    stack.enter_context(files_unmade(config))
    found(options, config, ahead.data)  # again: another run may have ended meanwhile
    begin(options, config, ahead.data)
    return stack.enter_context(RolloutsFile(config.output_dir / NAME, ahead.done))
