"""Everything a run is made of: model, adapter, back end, data, rewards and trainer."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import set_seed
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from flexinfer.backends.base.options import RolloutOptions
from flexinfer.backends.live import open_live
from flexinfer.config import EngineConfig, ModelOptions, Report
from flexinfer.engine.requests.limits import known_positions
from flexinfer.tasks.grpo import processes
from flexinfer.tasks.grpo.arguments import SEEDS, checked
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.encode import encoder
from flexinfer.tasks.grpo.plan.beside import fitted_beside
from flexinfer.tasks.grpo.positions import check_positions, check_room
from flexinfer.tasks.grpo.problems.fitting import fitting, longest_of
from flexinfer.tasks.grpo.problems.problem_set import Encode, Problems, Row
from flexinfer.tasks.grpo.problems.table import as_dataset
from flexinfer.tasks.grpo.rewards.sample import RewardFunc
from flexinfer.tasks.grpo.rollout import Rollout
from flexinfer.tasks.grpo.served import check_module
from flexinfer.tasks.grpo.stages import Stages
from flexinfer.tasks.grpo.training.correction import Correction
from flexinfer.tasks.grpo.training.trainer import OnPolicyGRPOTrainer
from flexinfer.tasks.grpo.work import Work, check_enough
from flexinfer.weights.adapters.check import NO_EFFECT
from flexinfer.weights.load import LoadedModel


class Parts(NamedTuple):
    """A run that is ready to begin.

    `stages` hears what the rollout's back end reports; `engine` is what it was opened with, and in
    `config` nothing is open any more.
    """

    loaded: LoadedModel
    problems: Problems
    encode: Encode
    rollout: Rollout
    stages: Stages
    engine: EngineConfig
    config: GrpoConfig
    trainer: OnPolicyGRPOTrainer
    notices: tuple[str, ...]


def adapted(loaded: LoadedModel, config: GrpoConfig) -> nn.Module:
    """Put a fresh LoRA adapter on every linear map of the layers (PEFT's `all-linear`)."""
    from peft import LoraConfig, get_peft_model

    set_seed(config.seed % SEEDS)
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    module: Any = loaded.module
    model: nn.Module = get_peft_model(module, lora)
    return model


def with_room(
    engine: EngineConfig, new_tokens: int, rows: Iterable[Row], encode: Encode, loaded: LoadedModel
) -> EngineConfig:
    """Return the engine's settings with room for every prompt's completion; raises UsageError."""
    prompt = longest_of(rows, encode)
    module: Any = loaded.module
    check_positions(prompt, new_tokens, known_positions(module.config.to_dict()), loaded.name)
    check_room(prompt, new_tokens, engine.max_seq_length)
    return replace(engine, max_seq_length=engine.max_seq_length or prompt + new_tokens)


def assemble(
    loaded: LoadedModel,
    work: Work,
    options: ModelOptions,
    engine: EngineConfig,
    config: GrpoConfig,
    rollout_options: RolloutOptions,
    report: Report,
    stack: ExitStack,
    widen: bool = False,
) -> Parts:
    """Adapt a loaded model, open the back end (`stack` closes it) and build the trainer.

    With `widen` the batch of `engine` may grow for held-out problems (see plan.scoring). Raises
    UsageError, EnvironmentUnfit or NotEnoughMemory as its parts do.
    """
    check_module(loaded.module, config.rollout, rollout_options)
    encode, stages = encoder(loaded, options), Stages(report)
    problems = fitting(work.problems, encode, config)
    check_enough(problems, config, processes.count())
    model = adapted(loaded, config)
    assert config.max_completion_length is not None
    every = chain(problems.rows, problems.held_out)
    engine = with_room(engine, config.max_completion_length, every, encode, loaded)
    held_out = len(problems.held_out) if widen else 0
    engine, config, fits = fitted_beside(options, engine, config, held_out, processes.count())
    backend = open_live(
        config.rollout, loaded, model, engine, rollout_options, options.lora_mode, stages
    )
    stack.enter_context(closing(backend))
    seed = processes.own_seed(config.seed, processes.rank())
    rollout = Rollout(backend, encode, seed, config.sleep)
    # a fresh adapter changes nothing yet, as it should: that is no news
    notices = tuple(line for line in backend.notices if line != NO_EFFECT)
    trainer = _trainer(loaded, model, problems, work.rewards, config, rollout)
    said_of = (*notices, *problems.notices, *said(config, problems), *fits)
    return Parts(loaded, problems, encode, rollout, stages, engine, config, trainer, said_of)


def said(config: GrpoConfig, problems: Problems) -> tuple[str, ...]:
    """Say what is trained with what, and where two settings work against each other."""
    rewards = ", ".join(config.reward or problems.rewards)
    completions = config.completions_per_step * processes.count()
    lines = [
        f"rewards: {rewards}",
        f"step: {completions} completions, {config.num_generations} a prompt, "
        f"up to {config.max_completion_length} tokens; learning rate {config.learning_rate:g}, "
        f"LoRA rank {config.lora_rank}, alpha {config.lora_alpha:g}",
        f"importance sampling: {config.is_correction}"
        + (f", weights up to {config.is_cap:g}" if config.is_correction != "none" else ""),
    ]
    if config.is_correction != "none" and (config.top_p < 1 or config.top_k or config.min_p):
        lines.append(
            "warning: samples come from a truncated distribution (--top-p, --top-k, --min-p), "
            "while importance weights are of the whole one"
        )
    return tuple(lines)


def _trainer(
    loaded: LoadedModel,
    model: nn.Module,
    problems: Problems,
    rewards: Sequence[RewardFunc],
    config: GrpoConfig,
    rollout: Rollout,
) -> OnPolicyGRPOTrainer:
    """Return TRL's trainer, corrected, that writes nothing to the terminal itself."""
    weight: torch.Tensor = next(loaded.module.parameters())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="You are using 'rollout_func'")
        trainer = OnPolicyGRPOTrainer(
            model=model,
            reward_funcs=list(rewards),
            args=checked(config, weight.dtype, weight.device),
            train_dataset=as_dataset(problems.name, problems.rows),
            processing_class=loaded.tokenizer,
            rollout_func=rollout,
            correction=Correction(config.is_correction, config.is_cap),
        )
    for noisy in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(noisy)
    return trainer
