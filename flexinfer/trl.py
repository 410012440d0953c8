"""For people who own their GRPOTrainer: this engine as its `rollout_func`.

    from flexinfer.trl import OnPolicyGRPOTrainer, make_rollout

    trainer = OnPolicyGRPOTrainer(model=model, ..., rollout_func=make_rollout())

Every step that the trainer logs has the gap between rollout and trainer. TRL's own GRPOTrainer
takes it too, and then measures and corrects nothing: it trusts a `rollout_func`.
"""

from __future__ import annotations

from flexinfer.backends.base.options import RolloutOptions
from flexinfer.config import ChatTemplate, EngineConfig, LoraMode
from flexinfer.tasks.grpo.live_rollout import LiveRollout
from flexinfer.tasks.grpo.training.correction import Correction
from flexinfer.tasks.grpo.training.trainer import OnPolicyGRPOTrainer

__all__ = ["Correction", "OnPolicyGRPOTrainer", "make_rollout"]


def make_rollout(
    config: EngineConfig | None = None,
    *,
    backend: str = "flex",
    options: RolloutOptions | None = None,
    lora_mode: LoraMode | None = None,
    chat_template: ChatTemplate = "auto",
) -> LiveRollout:
    """Return a `rollout_func` that generates from the trainer's own weights, adapter included.

    Model, tokenizer, data and sampling are the trainer's; `config` says how the engine runs, and
    without a max_seq_length in it there is room for the longest prompt of the data set. `backend`
    is flex, hf, hf-cb or vllm, which wants a kv_memory in `config`. The engine is built at the
    first rollout; `close()` gives its memory back, and `notices` say what runs.
    """
    return LiveRollout(
        config or EngineConfig(), options or RolloutOptions(), backend, lora_mode, chat_template
    )
