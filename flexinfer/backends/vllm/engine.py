"""How vLLM's engine is built: with its own defaults, but for what was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from flexinfer.backends.base.options import check_own
from flexinfer.backends.vllm.log import failure
from flexinfer.config import EngineConfig
from flexinfer.errors import EnvironmentUnfit, UsageError, one_line

SEEDS = 2**32
"""Seeds that vLLM takes, as it hands them on to numpy."""
NO_SHARE = 0.01
"""gpu_memory_utilization where kv_cache_memory_bytes is given: that much must be free, no less."""


def check_config(config: EngineConfig, beside: bool = False) -> None:
    """Raise UsageError for a setting that means nothing to vLLM, or that it does not take.

    A step of its must be able to take a token of every sequence; `beside` a trainer its size is
    always given.
    """
    check_own("vllm", config)
    if (_own_step(config) or beside) and config.prefill_tokens < config.max_batch_size:
        raise UsageError(
            f"--prefill-tokens {config.prefill_tokens} is less than --max-batch-size "
            f"{config.max_batch_size}, which vllm does not take",
            hint="raise one or lower the other",
        )


def settings(config: EngineConfig, longest: int, dtype: str) -> dict[str, Any]:
    """Return arguments of vllm.LLM: `longest` in tokens, `dtype` by its name in torch.

    Prompts of earlier calls are not kept, and log-probabilities are of what is sampled from. Where
    the cache's size is given, the share of the device that vLLM asks to be free is not wanted.
    """
    always = {
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": False,
        "dtype": dtype,
        "max_model_len": longest,
        "max_num_seqs": config.max_batch_size,
        "seed": config.seed % SEEDS,
        "enforce_eager": config.cuda_graphs is False,
    }
    optional = {
        "block_size": config.page_size,
        "kv_cache_memory_bytes": config.kv_memory,
        "gpu_memory_utilization": None if config.kv_memory is None else NO_SHARE,
        "max_num_batched_tokens": config.prefill_tokens if _own_step(config) else None,
    }
    return always | {name: value for name, value in optional.items() if value is not None}


def imported() -> Any:
    """Return the package; raises EnvironmentUnfit where it is broken."""
    try:
        return import_module("vllm")
    except Exception as error:
        raise EnvironmentUnfit(f"vllm cannot be imported: {one_line(error)}") from error


def built(vllm: Any, arguments: Mapping[str, Any], folder: Path, lora: Any = None) -> Any:
    """Return a vllm.LLM with the adapter `lora`, if any; raises as `failure` tells of `folder`."""
    try:
        llm = vllm.LLM(**arguments)
    except Exception as error:
        raise failure(error, folder) from error
    if lora is None:
        return llm
    try:
        llm.llm_engine.add_lora(lora)
    except Exception as error:
        llm.llm_engine.engine_core.shutdown()
        raise failure(error, folder) from error
    return llm


def _own_step(config: EngineConfig) -> bool:
    """Whether the size of a step was asked for."""
    return config.prefill_tokens != EngineConfig().prefill_tokens
