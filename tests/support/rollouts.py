"""Rollout back ends over tiny modules, with and without a live PEFT adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import PreTrainedModel

from flexinfer.backends.base.options import RolloutOptions
from flexinfer.backends.base.protocol import Backend
from flexinfer.backends.live import open_live
from flexinfer.config import EngineConfig
from flexinfer.engine.requests.outputs import Completion, Request
from tests.support.engines import LIMITS, OVERRIDES, loaded, request
from tests.support.tiny import FAMILIES

PROMPTS = ((5, 6, 7), (9,), tuple(range(20, 40)), (100, 200, 300, 400, 17))
"""Of several lengths, so that batches are padded; one is longer than two windows of Gemma-4."""
DENSE = {"attention": "dense"}


def fresh(family: str) -> PreTrainedModel:
    """Build a tiny model of a family that a test may train."""
    return FAMILIES[family](**OVERRIDES.get(family, {}))


def with_lora(module: PreTrainedModel, seed: int = 0, dropout: float = 0.0) -> Any:
    """Wrap a module in a LoRA adapter of rank 4 that changes its output, in training mode."""
    targets = ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
    config = LoraConfig(r=4, lora_alpha=8, target_modules=targets, lora_dropout=dropout)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = get_peft_model(module, config)
    shake(model, seed)
    return model.train()


def shake(model: nn.Module, seed: int) -> None:
    """Give every lora_B other values: what an optimizer step does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.1, generator=generator)


def live(
    name: str,
    module: PreTrainedModel,
    model: nn.Module | None = None,
    *,
    eos: Sequence[int] = (),
    options: RolloutOptions | None = None,
    **config: Any,
) -> Backend:
    """Open a back end over `model` (the module itself unless it is wrapped)."""
    limits = {"max_batch_size": 3, "max_seq_length": LIMITS["max_seq_length"]}
    settings = limits | (DENSE if name == "flex" else {}) | config
    held = loaded(module, eos=eos)
    return open_live(name, held, model or module, EngineConfig(**settings), options)


def requests(n_new: int = 12, **sampling: Any) -> list[Request]:
    """Ask for PROMPTS."""
    return [request(prompt, max_new_tokens=n_new, **sampling) for prompt in PROMPTS]


def samples(backend: Backend, asked: Sequence[Request]) -> list[list[Completion]]:
    """Return the samples of each request; fails where one was refused."""
    outputs = backend.generate(asked)
    assert [output.error for output in outputs] == [None] * len(asked)
    assert [output.index for output in outputs] == list(range(len(asked)))
    return [list(output.outputs) for output in outputs]


@torch.no_grad()
def own_logits(model: nn.Module, prompt: Sequence[int], token_ids: Sequence[int]) -> torch.Tensor:
    """Return the module's own fp32 logits [len(token_ids), V] that precede each token.

    The mode of every submodule is as before.
    """
    modes = [(child, child.training) for child in model.modules()]
    model.eval()
    ids = torch.tensor([[*prompt, *token_ids]])
    logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0].float()
    for child, training in modes:
        child.training = training
    return logits[len(prompt) - 1 : -1]
