"""What memory decides of a run, before its weights are loaded or beside them."""

from __future__ import annotations

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.plan.batch import batch_plan, chosen
from flexinfer.tasks.grpo.plan.cache import bounded, is_open
from flexinfer.tasks.grpo.plan.model import outline
from flexinfer.tasks.grpo.plan.parts import Setting
from flexinfer.tasks.grpo.plan.recompute import settled
from flexinfer.tasks.grpo.plan.scoring import needs_more, widened
from flexinfer.tasks.grpo.plan.standing import Inference, weight_bytes
from flexinfer.tasks.grpo.processes import sharing
from flexinfer.weights.place import available_bytes


def fitted(setting: Setting, free: float, held_out: int) -> tuple[Setting, tuple[str, ...]]:
    """Return a setting with batch, gradient checkpointing and KV memory chosen, and what to say.

    `free` is what there is, in bytes, before weights are loaded. `held_out` is 0 where the batch
    is to stay.
    """
    wide = setting._replace(engine=widened(setting, free, held_out))
    setting, recomputed = settled(wide, free)
    setting, kept = bounded(setting, free)
    return setting, (*recomputed, *kept)


def fitted_beside(
    options: ModelOptions,
    engine: EngineConfig,
    config: GrpoConfig,
    held_out: int,
    n_processes: int,
) -> tuple[EngineConfig, GrpoConfig, tuple[str, ...]]:
    """Do what `fitted` does where the weights of `options` are loaded already.

    `engine.max_seq_length` holds the longest prompt and completion. Nothing is planned where
    nothing is open: a plan builds the model's outline.
    """
    open_ = config.gradient_checkpointing is None or is_open(engine, config)
    if not open_ and not needs_more(engine, held_out):
        return engine, config, ()
    model, longest = outline(options), chosen(engine.max_seq_length)
    prompt = longest - chosen(config.max_completion_length)
    inference = Inference(model, chosen(config.lora_rank), options.lora_mode)
    batch = batch_plan(config, prompt, n_processes)
    free = available_bytes(model.device) // sharing(model.device.type) + weight_bytes(model)
    setting, lines = fitted(
        Setting(model, inference, engine, config, batch, prompt), free, held_out
    )
    return setting.engine, setting.config, lines
