"""What is going to be measured, known before any weights are loaded: a blank row per batch size."""

from __future__ import annotations

from flexinfer.config import EngineConfig, LoraMode, ModelOptions
from flexinfer.errors import UsageError
from flexinfer.tasks.bench.config import BenchConfig
from flexinfer.tasks.bench.result import BenchResult
from flexinfer.tasks.workload import prompt_lengths


def blank_rows(
    backend: str,
    model_name: str,
    options: ModelOptions,
    engine_config: EngineConfig,
    config: BenchConfig,
) -> list[BenchResult]:
    """Return rows that say what will run, without figures, in the order of the sweeps.

    `max_seq_length` is the one that was asked for, 0 where the workload decides.
    """
    return [
        BenchResult(
            backend=backend,
            model_name=model_name,
            lora_adapter=options.adapter,
            lora_mode=lora_mode(options, backend),
            quantization="nf4" if options.load_in_4bit else None,
            max_batch_size=size,
            max_seq_length=engine_config.max_seq_length or 0,
            n_prompts=work.prompts_at(size),
            n_samples=work.n_samples,
            prompt_length=work.prompt_length,
            max_new_tokens=work.max_new_tokens,
        )
        for work in config.workloads
        for size in config.batch_sizes or (engine_config.max_batch_size,)
    ]


def check_lengths(engine: EngineConfig, config: BenchConfig) -> None:
    """Raise UsageError where --max-seq-length does not hold a sequence of the workloads."""
    if engine.max_seq_length is None:
        return
    for work in config.workloads:
        for size in config.batch_sizes or (engine.max_batch_size,):
            prompts = prompt_lengths(work.prompts_at(size), work.lengths, work.seed)
            sequence_length(engine, max(prompts) + work.max_new_tokens)


def sequence_length(engine: EngineConfig, needed: int) -> int:
    """Return what the workload needs, or more where more was asked for; raises UsageError."""
    if engine.max_seq_length is None or engine.max_seq_length >= needed:
        return engine.max_seq_length or needed
    raise UsageError(
        f"--max-seq-length {engine.max_seq_length} is too short for this workload",
        hint=f"its longest prompt and --max-new-tokens take {needed}",
    )


def lora_mode(options: ModelOptions, backend: str) -> LoraMode | None:
    """Return how an adapter will be brought in, None without one; all but flex run it beside."""
    if options.adapter is None:
        return None
    beside = options.load_in_4bit or backend != "flex"
    return options.lora_mode or ("runtime" if beside else "merged")
