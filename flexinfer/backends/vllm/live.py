"""vLLM in a trainer's own process, with a copy of its weights, as TRL's colocate mode has it.

Nothing is read from disk: the engine is built with random weights, by the module's config, and the
trainer's are copied in before a first rollout.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import nn

from flexinfer.backends.vllm.backend import VllmBackend
from flexinfer.backends.vllm.engine import built, check_config, imported, settings
from flexinfer.backends.vllm.log import engine_variables, variables
from flexinfer.backends.vllm.trained import TrainedWeights
from flexinfer.config import EngineConfig, Report
from flexinfer.core.sizes import human
from flexinfer.engine.requests.limits import known_positions, limits
from flexinfer.errors import UsageError
from flexinfer.weights.load import LoadedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""Has the engine built where the trainer's tensors are."""


def open_vllm(
    loaded: LoadedModel,
    module: PreTrainedModel,
    model: nn.Module,
    config: EngineConfig,
    report: Report,
) -> VllmBackend:
    """Build vLLM's engine for `module`, a causal language model; `model` may be PEFT's around it.

    Raises UsageError for a setting that it has no use for, or where no --kv-memory says what it may
    take beside the trainer; EnvironmentUnfit or NotEnoughMemory with its own words.
    """
    weights = TrainedWeights(module, model)
    arguments = _arguments(loaded, module, config)
    report("starting vllm", 0, 0)
    with ExitStack() as unfinished:
        folder = TemporaryDirectory(prefix=f"flexinfer-vllm-{os.getpid()}-")
        unfinished.callback(folder.cleanup)
        where = Path(folder.name)
        (where / "config.json").write_text(json.dumps(_config(module)))
        guard = partial(_same_randomness, module.device)
        with engine_variables(where), variables(IN_PROCESS, over=True), guard():
            vllm = imported()
            llm = built(vllm, arguments | {"model": str(where)}, where)
        unfinished.callback(llm.llm_engine.engine_core.shutdown)
        backend = VllmBackend(
            llm=llm,
            folder=folder,
            sampling_params=vllm.SamplingParams,
            tokenizer=loaded.tokenizer,
            eos_ids=loaded.eos_ids,
            vocab_size=int(module.get_input_embeddings().weight.shape[0]),
            max_seq_length=arguments["max_model_len"],
            config=config,
            notices=(*loaded.notices, *_said(vllm.__version__, arguments)),
            weights=weights,
            guard=guard,
        )
        unfinished.pop_all()
    return backend


def _arguments(
    loaded: LoadedModel, module: PreTrainedModel, config: EngineConfig
) -> dict[str, Any]:
    """Return the arguments of vllm.LLM but for the model; raises UsageError as open_vllm does."""
    check_config(config, beside=True)
    if config.kv_memory is None:
        raise UsageError(
            "vllm takes nearly all of a device's memory where nothing bounds it, and beside a "
            "trainer something must",
            hint="give --kv-memory (EngineConfig(kv_memory=...))",
        )
    if module.device.type == "cpu" and torch.cuda.is_available():
        raise UsageError("vllm rolls out on the GPU: --device cpu is not for it")
    known = known_positions(module.config.to_dict())
    longest = limits(config.max_seq_length, None, 1, known, loaded.name).longest
    joined = torch.distributed.is_available() and torch.distributed.is_initialized()
    return settings(config, longest, str(module.dtype).removeprefix("torch.")) | {
        "load_format": "dummy",
        "max_num_batched_tokens": config.prefill_tokens,
        "distributed_executor_backend": "external_launcher" if joined else "uni",
    }


def _said(version: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Say what runs."""
    return (
        f"vllm {version}: in this process, with a copy of the weights that is made anew, adapter "
        "merged, after every step",
        f"KV cache: {human(arguments['kv_cache_memory_bytes'])}",
        f"limits: {arguments['max_num_seqs']} sequences at a time, "
        f"{arguments['max_model_len']} tokens each",
    )


def _config(module: PreTrainedModel) -> dict[str, Any]:
    """Return a config.json of the module.

    On a CPU vLLM packs the head when it is loaded; it would stay as it was where the embeddings
    that it is tied to are loaded anew.
    """
    config: dict[str, Any] = json.loads(module.config.to_json_string(use_diff=False))
    if module.device.type == "cpu":
        config["tie_word_embeddings"] = False
    return config | {"architectures": [type(module).__name__]}


@contextmanager
def _same_randomness(device: torch.device, llm: Any = None) -> Iterator[None]:
    """Leave the random state as it was: vLLM seeds what is the trainer's here."""
    python, arrays = random.getstate(), numpy.random.get_state()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)
