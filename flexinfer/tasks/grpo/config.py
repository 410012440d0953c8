"""What train-grpo does: a frozen, validated config; what is None is chosen by recipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from flexinfer.config import IsCorrection
from flexinfer.errors import UsageError
from flexinfer.tasks.grpo.recipes import recipe

MOST = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class GrpoConfig:
    """One run: data, rewards, batch arithmetic, optimizer, sampling and what is written where.

    `per_device_batch_size` counts completions in a forward pass, as TRL does; a step takes
    `gradient_accumulation_steps` of them and `num_generations` completions share a prompt. Lengths
    are in tokens. `eval_size` held-out problems are scored, all where None. `is_cap` bounds the
    importance weights. `beta` is the weight of the KL term. With `sleep` the rollout's KV memory is
    given back while the adapter is trained.
    """

    rollout: str = "flex"
    dataset: str = "arithmetic"
    reward: tuple[str, ...] = ()
    max_steps: int | None = None
    num_generations: int | None = None
    per_device_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    learning_rate: float | None = None
    warmup_steps: int | None = None
    weight_decay: float = 0.001
    max_grad_norm: float = 1.0
    optim: str = "adamw_torch"
    lr_scheduler: str = "linear"
    loss_type: str = "dapo"
    beta: float = 0.0
    gradient_checkpointing: bool | None = None
    lora_rank: int | None = None
    lora_alpha: float | None = None
    max_prompt_length: int | None = None
    eval_size: int | None = None
    max_completion_length: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    is_correction: IsCorrection = "token_truncate"
    is_cap: float = 3.0
    sleep: bool = False
    save_steps: int | None = None
    output_dir: Path = Path("flexinfer-grpo")
    resume: bool = False
    report: Path | None = None
    report_to: str | None = None
    stats_path: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check choices and ranges; raises UsageError that names the flag."""
        for name, (ok, allowed) in _RULES.items():
            value = getattr(self, name)
            if value is not None and not ok(value):
                raise UsageError(f"{_flag(name)} is {value!r}; allowed: {allowed}")
        self._check_groups()

    def _check_groups(self) -> None:
        """Raise UsageError unless the completions of a step are whole groups."""
        if self.num_generations is None or not self.completions_per_step:
            return
        if self.completions_per_step % self.num_generations:
            raise UsageError(
                f"a step has {self.completions_per_step} completions (--per-device-batch-size x "
                f"--gradient-accumulation-steps), no multiple of --num-generations "
                f"{self.num_generations}"
            )

    @property
    def stats_file(self) -> Path:
        """Where the statistics go: `stats_path`, else into the output folder."""
        return self.stats_path or self.output_dir / "stats.json"

    @property
    def completions_per_step(self) -> int:
        """Completions that a device makes for an optimizer step; 0 while it is open."""
        return (self.per_device_batch_size or 0) * (self.gradient_accumulation_steps or 0)

    def filled(self, model: str) -> GrpoConfig:
        """Return the config with every open choice made; raises UsageError where they clash.

        But that of gradient checkpointing, which memory decides (plan.recompute).
        """
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        open_ = {
            name: value for name, value in recipe(model, self.dataset).items() if own[name] is None
        }
        made = own | open_
        made["lora_alpha"] = self.lora_alpha or 2.0 * made["lora_rank"]
        made["save_steps"] = self.save_steps or made["max_steps"]
        return GrpoConfig(**made)


_Rule = tuple[Callable[[Any], bool], str]
_COUNT: _Rule = (lambda v: type(v) is int and 1 <= v <= MOST, f"1 to {MOST}")
_COUNT_FROM_ZERO: _Rule = (lambda v: type(v) is int and 0 <= v <= MOST, f"0 to {MOST}")
_POSITIVE: _Rule = (lambda v: 0 < v <= sys.float_info.max, "a number above 0")
_FROM_ZERO: _Rule = (lambda v: 0 <= v <= sys.float_info.max, "0 or more")
_RULES: Mapping[str, _Rule] = MappingProxyType(
    {
        "max_steps": _COUNT,
        "num_generations": (lambda v: 2 <= v <= MOST, "2 or more: advantages are within a group"),
        "per_device_batch_size": _COUNT,
        "gradient_accumulation_steps": _COUNT,
        "learning_rate": _POSITIVE,
        "warmup_steps": _COUNT_FROM_ZERO,
        "weight_decay": _FROM_ZERO,
        "max_grad_norm": _POSITIVE,
        "beta": _FROM_ZERO,
        "lora_rank": (lambda v: 1 <= v <= 4096, "1 to 4096"),
        "lora_alpha": (lambda v: 0 < v <= 1e6, "above 0, at most 1e6"),
        "max_prompt_length": _COUNT,
        "eval_size": _COUNT_FROM_ZERO,
        "max_completion_length": _COUNT,
        "temperature": (lambda v: 1e-6 <= v <= 1e6, "1e-6 to 1e6: greedy samples are all alike"),
        "is_correction": (lambda v: v in get_args(IsCorrection), ", ".join(get_args(IsCorrection))),
        "is_cap": _POSITIVE,
        "save_steps": _COUNT,
    }
)


def _flag(name: str) -> str:
    """Return the option that sets a field."""
    return "--" + name.replace("_", "-")
