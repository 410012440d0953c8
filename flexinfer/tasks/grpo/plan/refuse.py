"""What a run refuses once its model is loaded, as far as the model's outline tells it."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from flexinfer.backends.base.options import RolloutOptions
from flexinfer.backends.vllm.trained import check_copied
from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.tasks.grpo import processes
from flexinfer.tasks.grpo.arguments import checked
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.encode import encoder_of
from flexinfer.tasks.grpo.plan.batch import chosen
from flexinfer.tasks.grpo.plan.model import Outline
from flexinfer.tasks.grpo.plan.standing import Inference
from flexinfer.tasks.grpo.positions import check_positions, check_room
from flexinfer.tasks.grpo.problems.fitting import fitting, longest_of
from flexinfer.tasks.grpo.problems.problem_set import Problems
from flexinfer.tasks.grpo.served import check_attention, check_module
from flexinfer.tasks.grpo.work import check_enough
from flexinfer.weights import gguf, hub, names, tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def refuse(
    model: Outline,
    inference: Inference,
    engine: EngineConfig,
    config: GrpoConfig,
    rollout_options: RolloutOptions,
) -> None:
    """Raise as a run does for a trainer, an attention or a back end that cannot be had.

    Of a device that is not here nobody knows what it can.
    """
    here = model.device.type == "cpu" or torch.cuda.is_available()
    with processes.alone():
        checked(config, torch.float32, model.device if here else torch.device("cpu"))
    if config.rollout == "vllm":
        check_copied(bool(model.packed))
    if here:
        check_module(model.module, config.rollout, rollout_options)
    if here and config.rollout == "flex":
        dims = sorted({spec.head_dim for spec in inference.decoder.specs})
        check_attention(engine, dims, model.device, model.dtype)


def refuse_lengths(
    model: Outline,
    options: ModelOptions,
    engine: EngineConfig,
    config: GrpoConfig,
    problems: Problems,
) -> None:
    """Raise UsageError as a run does for prompts that are too long for what was asked.

    They are encoded where a limit is given and the tokenizer is on this machine.
    """
    if engine.max_seq_length is None and config.max_prompt_length is None:
        return
    own = _tokenizer(options)
    if own is None:
        return
    encode = encoder_of(own, str(model.module.config.model_type), options)
    taken = fitting(problems, encode, config)
    check_enough(taken, config, processes.count())
    longest = longest_of(chain(taken.rows, taken.held_out), encode)
    new_tokens = chosen(config.max_completion_length)
    check_positions(longest, new_tokens, model.positions, model.name)
    check_room(longest, new_tokens, engine.max_seq_length)


def _tokenizer(options: ModelOptions) -> PreTrainedTokenizerFast | None:
    """Return the tokenizer that loading would take, None where it is not on this machine."""
    if options.load_format == "dummy":
        return tokenizer.embedded()
    found = names.resolve(options.model)
    if found.gguf is not None:
        return gguf.read_tokenizer(found.gguf)
    folder = found.folder or hub.cached_config(found.hub_ids)
    if folder is None or not (Path(folder) / "tokenizer.json").is_file():
        return None
    return tokenizer.from_folder(folder)
