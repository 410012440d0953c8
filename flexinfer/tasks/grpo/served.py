"""Whether a rollout can run a model as asked: as its config tells, before a first step."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from flexinfer.attention.choose import choose_attention, triton_obstacle
from flexinfer.backends.base.options import RolloutOptions
from flexinfer.config import EngineConfig
from flexinfer.errors import EnvironmentUnfit, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transformers import PreTrainedModel


def check_module(module: PreTrainedModel, rollout: str, options: RolloutOptions) -> None:
    """Raise EnvironmentUnfit for what hf or hf-cb cannot run; the module is left as it was.

    That is an attention which transformers does not have for it here and, with continuous
    batching, heads that differ from layer to layer. The module may lie on the meta device.
    """
    if options.attn_impl is not None:
        from flexinfer.backends.huggingface.lend import Lender

        with Lender(module, options.attn_impl).loan():
            pass
    if rollout == "hf-cb":
        _check_one_head_dim(module)


def check_attention(
    engine: EngineConfig, head_dims: Iterable[int], device: torch.device, dtype: torch.dtype
) -> None:
    """Raise EnvironmentUnfit or UsageError for an --attention that the engine cannot have."""
    on_cuda = device.type == "cuda"
    capability = torch.cuda.get_device_capability(device) if on_cuda else (0, 0)
    installed = find_spec("triton") is not None
    obstacle = triton_obstacle(device.type, capability, head_dims, dtype.itemsize, installed)
    tuned = bool(engine.decode_kernel_options or engine.prefill_kernel_options)
    choose_attention(engine.attention, device.type, shutil.which("g++"), obstacle, tuned)


def _check_one_head_dim(module: PreTrainedModel) -> None:
    """Raise EnvironmentUnfit, as a first rollout would, where a config tells of no one head dim."""
    try:
        getattr(module.config, "head_dim", None)
    except (ValueError, LookupError, RuntimeError) as error:
        why = one_line(error).partition(". ")[0]
        raise EnvironmentUnfit(
            f"transformers' continuous batching cannot run this {module.config.model_type}: {why}",
            hint="take another back end",
        ) from error
