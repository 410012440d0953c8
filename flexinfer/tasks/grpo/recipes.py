"""What is trained with what where nobody says: any model, one model, one model on one data set."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

GENERAL: Mapping[str, Any] = MappingProxyType(
    {
        "max_steps": 100,
        "num_generations": 4,
        "per_device_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "learning_rate": 5e-6,
        "warmup_steps": 10,
        "lora_rank": 32,
        "max_completion_length": 512,
    }
)
"""What a model is trained with."""
OF_MODEL: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"tiny-gemma4": MappingProxyType({"learning_rate": 2.5e-3, "lora_rank": 8, "warmup_steps": 5})}
)
"""What some models are trained with instead, on whatever data: what an adapter of theirs needs."""
OF_BOTH: Mapping[tuple[str, str], Mapping[str, Any]] = MappingProxyType(
    {
        ("tiny-gemma4", "arithmetic"): MappingProxyType(
            {
                "max_steps": 150,
                "per_device_batch_size": 256,
                "gradient_accumulation_steps": 1,
                "max_completion_length": 8,
                "gradient_checkpointing": False,
            }
        )
    }
)
"""What some (model, data set) are trained with besides: a step's size and length are the data's."""


def recipe(model: str, dataset: str) -> Mapping[str, Any]:
    """Return the defaults of a model on a data set; case does not matter."""
    return {**GENERAL, **unusual(model, dataset)}


def unusual(model: str, dataset: str) -> Mapping[str, Any]:
    """Return those that are not the general ones."""
    pair = (model.lower(), dataset.lower())
    return {**OF_MODEL.get(pair[0], {}), **OF_BOTH.get(pair, {})}


def told(model: str, dataset: str, chosen: Mapping[str, Any]) -> tuple[str, ...]:
    """Say which unusual defaults are taken: of what is None in `chosen`, by the options' names."""
    taken = {k: v for k, v in unusual(model, dataset).items() if chosen[k] is None}
    if not taken:
        return ()
    on = f" on {dataset}" if (model.lower(), dataset.lower()) in OF_BOTH else ""
    return (f"defaults of {model}{on}: " + " ".join(_flag(k, v) for k, v in taken.items()),)


def _flag(name: str, value: Any) -> str:
    """Return an option as it would be given."""
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    return f"--{option} {value}"
