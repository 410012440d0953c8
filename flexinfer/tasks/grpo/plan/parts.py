"""Everything that a run has in memory but the KV cache, part by part."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from flexinfer.config import EngineConfig
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.plan.batch import BatchPlan, chosen
from flexinfer.tasks.grpo.plan.fit import Part
from flexinfer.tasks.grpo.plan.model import Outline
from flexinfer.tasks.grpo.plan.passing import KV, activation_bytes, kv_of, prefill_bytes
from flexinfer.tasks.grpo.plan.standing import (
    Inference,
    adapter_bytes,
    optimizer_bytes,
    weight_bytes,
)

CONTEXT_BYTES = 600_000_000
"""The CUDA context, library workspaces and captured graphs, nearly."""


VLLM_SPARE = 2048
"""Tokens more that vLLM is given room for: its blocks are others, of up to 128 tokens for each kind
of layer, and some stay empty."""


class Setting(NamedTuple):
    """What is planned: `config` is filled, `prompt` the longest one, in tokens."""

    model: Outline
    inference: Inference
    engine: EngineConfig
    config: GrpoConfig
    batch: BatchPlan
    prompt: int

    def kv(self) -> KV:
        """Return the KV cache of sequences at their longest."""
        longest = self.prompt + chosen(self.config.max_completion_length)
        kv = kv_of(self.model, self.inference.decoder, self.engine, longest)
        return replace(kv, spare=VLLM_SPARE // kv.page) if self.config.rollout == "vllm" else kv


def parts_of(setting: Setting) -> list[Part]:
    """Return the parts in each process."""
    model, inference, engine, config, batch, prompt = setting
    rank, optim = chosen(config.lora_rank), config.optim
    checkpointing = bool(config.gradient_checkpointing)
    parts = [
        Part("weights", "always", weight_bytes(model)),
        Part(f"adapter, rank {rank}", "always", adapter_bytes(model, rank)),
        Part(f"optimizer, {optim}", "always", optimizer_bytes(model, rank, optim)),
    ]
    if config.rollout == "flex":
        parts.append(Part(f"engine's copy, {inference.mode}", "always", inference.n_bytes))
    if config.rollout == "vllm":
        parts.append(Part("vllm's copy of the weights", "always", weight_bytes(model)))
    if model.device.type == "cuda":
        parts.append(Part("CUDA context, graphs", "always", CONTEXT_BYTES))
    prompts = -(-batch.prompts_per_step // batch.processes) * prompt
    return [
        *parts,
        Part("prefill, sampling", "rollout", prefill_bytes(model, engine, prompts)),
        Part("gradients", "training", adapter_bytes(model, rank)),
        Part("activations", "training", activation_bytes(model, batch, checkpointing)),
    ]
