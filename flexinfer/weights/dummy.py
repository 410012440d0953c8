"""Random weights of a real shape: logits far from flat, and rounding that does not grow with depth.

The scales below keep three promises. Logits have a standard deviation of LOGIT_STD. All residual
branches together weigh as much as the embedding, so each adds little and an error passes through
instead of growing. Attention scores have a standard deviation of about 1: neither flat nor chaotic.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice, repeat
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from flexinfer.config import Report, quiet
from flexinfer.weights.nf4.slots import Slots

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

LOGIT_STD = 2.5
_GATED_RMS = 0.6
"""Root mean square of silu(g) * u, and nearly of gelu(g) * u, for standard normal g and u."""

BLOCK = 2**22
"""Elements that one thread of a CPU draws in one go."""


def fill(model: PreTrainedModel, seed: int, report: Report = quiet) -> None:
    """Draw all parameters of `model` in place, on its own device, from generators of its own."""
    if model.device.type == "cpu":
        _fill_on_threads(model, seed, report)
    else:
        _fill_in_order(model, seed, report)
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):
            nn.init.ones_(buffer)


def _fill_in_order(model: PreTrainedModel, seed: int, report: Report) -> None:
    """Draw one parameter after the other from one generator."""
    generator = torch.Generator(model.device).manual_seed(seed)
    slots, names = Slots(model), [name for name, _ in model.named_parameters()]
    for done, name in enumerate(names):
        with slots.slot(name) as tensor:
            _draw(name, tensor, model.config, generator)
        report("drawing weights", done + 1, len(names))


def _fill_on_threads(model: PreTrainedModel, seed: int, report: Report) -> None:
    """Draw blocks of BLOCK elements side by side, each from a generator of its own.

    One core draws 100 million normals a second, and models of a real size have thousands of
    millions. The values depend on the seed and the shapes, not on the number of threads.
    """
    first = torch.Generator().manual_seed(seed)
    seeds = count(int(torch.randint(2**31, (), generator=first)))
    slots, shapes = Slots(model), [(n, t.shape) for n, t in model.named_parameters()]
    total, done = sum(len(_cuts(shape)) for _, shape in shapes), 0

    def draw(name: str, part: Tensor, seed: int) -> None:
        _draw(name, part, model.config, torch.Generator().manual_seed(seed))

    threads = ThreadPoolExecutor(torch.get_num_threads())
    try:
        for name, shape in shapes:
            with slots.slot(name) as tensor:
                parts = torch.split(tensor.detach(), _cuts(shape))
                named, drawn = repeat(name), [*islice(seeds, len(parts))]
                for _ in threads.map(draw, named, parts, drawn):
                    done += 1
                    report("drawing weights", done, total)
    finally:
        threads.shutdown(cancel_futures=True)


def _cuts(shape: torch.Size) -> list[int]:
    """Return how many rows each block of a tensor has: BLOCK elements, or one row."""
    rows = max(1, BLOCK * shape[0] // shape.numel())
    return [min(rows, shape[0] - at) for at in range(0, shape[0], rows)]


@torch.no_grad()
def _draw(name: str, tensor: Tensor, config: PreTrainedConfig, generator: torch.Generator) -> None:
    """Fill one parameter: a matrix with a normal, a norm's weight with a constant or signs."""
    if name == "model.norm.weight":
        # Random signs: with a tied head a token's own logit would otherwise outweigh all others.
        tensor.bernoulli_(0.5, generator=generator).mul_(2).sub_(1)
    elif tensor.dim() == 1:
        tensor.fill_(0.0 if name.endswith("bias") else _norm_weight(name, tensor, config))
    else:
        tensor.normal_(0.0, _std(name, tensor, config), generator=generator)


def _norm_weight(name: str, weight: Tensor, config: PreTrainedConfig) -> float:
    """Return the constant weight of a norm; Gemma's post norms set the size of its branches."""
    gemma = config.model_type == "gemma4_text"
    if gemma and name.endswith(("q_norm.weight", "k_norm.weight")):
        return float(weight.shape[0] ** -0.25)  # Gemma's attention scale is 1, not head_dim**-0.5
    if gemma and ".post_" in name:
        return LOGIT_STD / math.sqrt(3 * config.num_hidden_layers)
    return 1.0


def _std(name: str, weight: Tensor, config: PreTrainedConfig) -> float:
    """Return the standard deviation of a matrix [out, in]; by default output is as input."""
    kind = name.split(".")[-2]
    as_input = 1 / math.sqrt(weight.shape[1])
    embedding = LOGIT_STD / math.sqrt(config.hidden_size)
    if kind in ("embed_tokens", "lm_head"):
        return embedding
    if kind == "embed_tokens_per_layer":
        return 1 / math.sqrt(config.hidden_size_per_layer_input)
    if kind == "per_layer_input_gate":  # reads the residual stream, which no norm has scaled
        return as_input / LOGIT_STD
    if config.model_type == "gemma4_text" or kind not in ("o_proj", "down_proj"):
        return as_input
    branch = as_input * embedding / math.sqrt(2 * config.num_hidden_layers)
    return branch if kind == "o_proj" else branch / _GATED_RMS
