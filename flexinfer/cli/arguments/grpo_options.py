"""The options of train-grpo that say what is done, in the groups that its help shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flexinfer import config
from flexinfer.cli.arguments.flags import option
from flexinfer.cli.arguments.options import choices

DATA, BATCH, OPTIMIZER, ROLLOUT = "Data", "Batch", "Optimizer", "Rollout"


@dataclass(frozen=True, kw_only=True)
class DataFlags:
    """What is trained on, and what is rewarded."""

    dataset: Annotated[
        str,
        option(
            "--dataset",
            panel=DATA,
            metavar="NAME",
            help="arithmetic, gsm8k, dapo-math, or a .jsonl or .parquet file.",
        ),
    ] = "arithmetic"
    reward: Annotated[
        list[str] | None,
        option(
            "--reward",
            panel=DATA,
            metavar="NAME",
            help="Repeatable: a name, or module:function (default: those of the data set).",
        ),
    ] = None
    max_prompt_length: Annotated[
        int | None,
        option(
            "--max-prompt-length",
            panel=DATA,
            metavar="N",
            help="Leave longer prompts out (dapo-math: the longest tenth).",
        ),
    ] = None
    eval_size: Annotated[
        int | None,
        option(
            "--eval-size",
            panel=DATA,
            metavar="N",
            help="Held-out problems scored before and after (default: all; 0: none).",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class BatchFlags:
    """How much goes into a step, and how many there are; defaults are a recipe's."""

    max_steps: Annotated[
        int | None,
        option(
            "--max-steps",
            panel=BATCH,
            metavar="N",
            help="Optimizer steps (default: 100; tiny-gemma4 on arithmetic: 150).",
        ),
    ] = None
    num_generations: Annotated[
        int | None,
        option(
            "--num-generations",
            panel=BATCH,
            metavar="N",
            help="Completions of a prompt (default: 4).",
        ),
    ] = None
    per_device_batch_size: Annotated[
        int | None,
        option(
            "--per-device-batch-size",
            panel=BATCH,
            metavar="N",
            help="Completions in a forward pass (default: 4; tiny-gemma4 on arithmetic: 256).",
        ),
    ] = None
    gradient_accumulation_steps: Annotated[
        int | None,
        option(
            "--gradient-accumulation-steps",
            panel=BATCH,
            metavar="N",
            help="Forward passes of a step, rolled out at once "
            "(default: 4; tiny-gemma4 on arithmetic: 1).",
        ),
    ] = None
    max_completion_length: Annotated[
        int | None,
        option(
            "--max-completion-length",
            panel=BATCH,
            metavar="N",
            help="New tokens at most (default: 512; tiny-gemma4 on arithmetic: 8).",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class OptimizerFlags:
    """How the adapter is trained."""

    learning_rate: Annotated[
        float | None,
        option(
            "--learning-rate",
            panel=OPTIMIZER,
            metavar="X",
            help="At its peak (default: 5e-6; tiny-gemma4: 2.5e-3).",
        ),
    ] = None
    lr_scheduler: Annotated[
        str,
        option("--lr-scheduler", panel=OPTIMIZER, metavar="NAME", help="As transformers has them."),
    ] = "linear"
    warmup_steps: Annotated[
        int | None,
        option(
            "--warmup-steps",
            panel=OPTIMIZER,
            metavar="N",
            help="Until the rate's peak (default: 10; tiny-gemma4: 5).",
        ),
    ] = None
    weight_decay: Annotated[
        float, option("--weight-decay", panel=OPTIMIZER, metavar="X", help="AdamW's.")
    ] = 0.001
    max_grad_norm: Annotated[
        float, option("--max-grad-norm", panel=OPTIMIZER, metavar="X", help="Clip gradients.")
    ] = 1.0
    optim: Annotated[
        str, option("--optim", panel=OPTIMIZER, metavar="NAME", help="As transformers has them.")
    ] = "adamw_torch"
    loss_type: Annotated[
        str, option("--loss-type", panel=OPTIMIZER, metavar="NAME", help="As TRL has them.")
    ] = "dapo"
    beta: Annotated[
        float, option("--beta", panel=OPTIMIZER, metavar="X", help="Weight of the KL term.")
    ] = 0.0
    gradient_checkpointing: Annotated[
        bool | None,
        option(
            "--gradient-checkpointing/--no-gradient-checkpointing",
            panel=OPTIMIZER,
            help="Recompute activations in the backward pass (default: where they would not fit).",
        ),
    ] = None
    lora_rank: Annotated[
        int | None,
        option("--lora-rank", panel=OPTIMIZER, metavar="N", help="Default: 32; tiny-gemma4: 8."),
    ] = None
    lora_alpha: Annotated[
        float | None,
        option("--lora-alpha", panel=OPTIMIZER, metavar="X", help="Default: twice the rank."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RolloutFlags:
    """What completes the prompts, and how its samples are weighted."""

    rollout: Annotated[
        str,
        option(
            "--rollout",
            panel=ROLLOUT,
            metavar="flex|hf|hf-cb|vllm",
            help="This engine, model.generate, continuous batching, or vLLM.",
        ),
    ] = "flex"
    temperature: Annotated[
        float, option("--temperature", panel=ROLLOUT, metavar="T", help="Of the samples.")
    ] = 1.0
    top_p: Annotated[float, option("--top-p", panel=ROLLOUT, metavar="P", help="1 is off.")] = 1.0
    top_k: Annotated[int, option("--top-k", panel=ROLLOUT, metavar="K", help="0 is off.")] = 0
    min_p: Annotated[float, option("--min-p", panel=ROLLOUT, metavar="P", help="0 is off.")] = 0.0
    is_correction: Annotated[
        str,
        option(
            "--is-correction",
            panel=ROLLOUT,
            metavar=choices(config.IsCorrection),
            help="Importance weights of trainer over rollout.",
        ),
    ] = "token_truncate"
    is_cap: Annotated[
        float, option("--is-cap", panel=ROLLOUT, metavar="X", help="The largest weight.")
    ] = 3.0
    sleep: Annotated[
        bool,
        option(
            "--sleep/--no-sleep",
            panel=ROLLOUT,
            help="Give the KV cache's memory back while training.",
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class HfFlags:
    """What transformers' own generation may be told: hf and hf-cb only."""

    attn_impl: Annotated[
        str | None,
        option("--attn-impl", panel=ROLLOUT, metavar="NAME", help="hf, hf-cb: its attention."),
    ] = None
    persistent_cb: Annotated[
        bool, option("--persistent-cb", panel=ROLLOUT, help="hf-cb: keep its manager.")
    ] = False
    compile_mode: Annotated[
        str | None,
        option("--compile-mode", panel=ROLLOUT, metavar="NAME", help="hf, hf-cb: torch.compile."),
    ] = None
    compile_dynamic: Annotated[
        bool | None,
        option(
            "--compile-dynamic/--no-compile-dynamic",
            panel=ROLLOUT,
            help="hf, hf-cb: shapes of torch.compile.",
        ),
    ] = None
