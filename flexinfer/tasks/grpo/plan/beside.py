"""What is planned where the weights are loaded already: the same parts, and what memory is left."""

from __future__ import annotations

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.engine.memory import available_memory
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.plan.batch import batch_plan, chosen
from flexinfer.tasks.grpo.plan.model import outline
from flexinfer.tasks.grpo.plan.parts import Setting
from flexinfer.tasks.grpo.plan.standing import Inference, weight_bytes
from flexinfer.tasks.grpo.processes import sharing


def setting_beside(
    options: ModelOptions, engine: EngineConfig, config: GrpoConfig, n_processes: int
) -> tuple[Setting, int]:
    """Return what runs beside loaded weights, and the bytes that there were before them.

    `engine.max_seq_length` holds the longest prompt and completion.
    """
    model, longest = outline(options), chosen(engine.max_seq_length)
    prompt = longest - chosen(config.max_completion_length)
    inference = Inference(model, chosen(config.lora_rank), options.lora_mode)
    batch = batch_plan(config, prompt, n_processes)
    free = available_memory(model.device) // sharing(model.device.type) + weight_bytes(model)
    return Setting(model, inference, engine, config, batch, prompt), free
