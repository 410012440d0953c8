"""What an engine says of itself when it is built: what runs, and how much of it."""

from __future__ import annotations

from flexinfer.config import EngineConfig
from flexinfer.core.sizes import human
from flexinfer.engine.memory import PagePlan
from flexinfer.weights.inference import InferenceWeights


def sight(windows: tuple[int | None, ...]) -> str:
    """Say how far the layers see."""
    return " and ".join("full" if w is None else f"window {w}" for w in windows)


def notices_of(
    graphs: bool, plan: PagePlan, page: int, longest: int, config: EngineConfig
) -> tuple[str, ...]:
    """Say what runs and why."""
    held = (plan.n_pages - 1) * page
    limited = " (memory is short of the whole batch)" if plan.limited else ""
    return (
        *(
            ("batch-invariant: products and attention sum in an order of their own",)
            if config.batch_invariant
            else ()
        ),
        "CUDA graphs: " + ("on, captured at first use" if graphs else "off"),
        f"KV cache: {plan.n_pages} pages of {page} tokens, {human(plan.n_bytes)}; holds {held} "
        f"tokens{limited}",
        f"limits: {config.max_batch_size} sequences at a time, {longest} tokens each",
    )


def weights_notices(weights: InferenceWeights) -> tuple[str, ...]:
    """Say which adapter runs, how, and what it and copies of 4-bit weights cost in memory."""
    said = list(_adapter_notices(weights))
    if copied := weights.copied_bytes:
        said.append(
            f"4-bit: {human(copied)} of weights copied, so that those of one input lie together"
        )
    return tuple(said)


def _adapter_notices(weights: InferenceWeights) -> tuple[str, ...]:
    """Say which adapter runs, if any."""
    if weights.idle_adapter:
        return (
            "LoRA: none; the model's PEFT adapter is not in use, its base alone is served"
            " (LoadedModel.adapter=AdapterChoice(model) brings it in)",
        )
    if weights.adapter is None or weights.weights is None:
        return ("LoRA: none",)
    how = f"LoRA: {weights.mode}, {human(weights.weights.n_bytes)} beside the base"
    return (how, *weights.adapter.notices)
