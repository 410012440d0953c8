"""From this package's config to TRL's: the one place where TRL's names for things are written."""

from __future__ import annotations

import torch
from transformers import get_scheduler
from trl import GRPOConfig, GRPOTrainer

from flexinfer.errors import EnvironmentUnfit, UsageError, one_line
from flexinfer.tasks.grpo.config import GrpoConfig

SEEDS = 2**32
"""Seeds that numpy takes, and so the trainer; rollouts draw from the whole one."""
NEVER = 10**9
"""Steps between checkpoints where none is asked for but the last."""


def arguments(config: GrpoConfig, dtype: torch.dtype, device: torch.device) -> GRPOConfig:
    """Return the arguments of a trainer for a filled config; raises ValueError as TRL does.

    The optimizer's own mixed precision follows the dtype of the weights: autocast where they are
    bf16 or fp16 (the adapter's masters are fp32), nothing where they are fp32.
    """
    return GRPOConfig(
        output_dir=str(config.output_dir),
        max_steps=config.max_steps,
        num_generations=config.num_generations,
        per_device_train_batch_size=config.per_device_batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        max_completion_length=config.max_completion_length,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        min_p=config.min_p or None,
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.lr_scheduler,
        warmup_steps=config.warmup_steps,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        optim=config.optim,
        beta=config.beta,
        loss_type=config.loss_type,
        gradient_checkpointing=config.gradient_checkpointing,
        bf16=dtype == torch.bfloat16,
        fp16=dtype == torch.float16,
        use_cpu=device.type == "cpu",
        seed=config.seed % SEEDS,
        logging_steps=1,
        save_strategy="steps",
        save_steps=config.save_steps or NEVER,
        report_to=config.report_to or "none",
        disable_tqdm=True,
    )


def checked(config: GrpoConfig, dtype: torch.dtype, device: torch.device) -> GRPOConfig:
    """Return the arguments, tried out: some optimizers and schedulers want what no option gives.

    Raises UsageError, or EnvironmentUnfit for an optimizer whose package is missing.
    """
    try:
        made = arguments(config, dtype, device)
        GRPOTrainer.get_optimizer_cls_and_kwargs(made)
        toy = torch.optim.SGD([torch.zeros(1)])
        get_scheduler(made.lr_scheduler_type, toy, num_warmup_steps=0, num_training_steps=1)
    except ImportError as error:
        raise EnvironmentUnfit(f"--optim {config.optim}: {one_line(error)}") from error
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"the trainer does not take these options: {one_line(error)}",
            hint="choose another --optim or --lr-scheduler",
        ) from error
    return made
