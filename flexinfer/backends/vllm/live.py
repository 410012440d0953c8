"""vLLM in a trainer's own process, with a copy of its weights, as TRL's colocate mode has it.

Nothing is read from disk: the engine is built with random weights, by the module's config, and the
trainer's are copied in before a first rollout.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import nn

from flexinfer.backends.vllm.backend import VllmBackend
from flexinfer.backends.vllm.engine import built, check_config, imported, settings
from flexinfer.backends.vllm.log import engine_variables
from flexinfer.backends.vllm.trained import TrainedWeights
from flexinfer.config import EngineConfig, Report
from flexinfer.engine.requests.limits import known_positions, limits
from flexinfer.errors import UsageError
from flexinfer.weights.load import LoadedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PROCESSES = "VLLM_ENABLE_V1_MULTIPROCESSING"


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
    check_config(config)
    if config.kv_memory is None:
        raise UsageError(
            "vllm takes nearly all of a device's memory where nothing bounds it, and beside a "
            "trainer something must",
            hint="give --kv-memory (EngineConfig(kv_memory=...))",
        )
    weights = TrainedWeights(module, model)
    known = known_positions(module.config.to_dict())
    longest = limits(config.max_seq_length, None, 1, known, loaded.name).longest
    arguments = settings(config, longest, str(module.dtype).removeprefix("torch."))
    arguments |= {"load_format": "dummy", "distributed_executor_backend": _executor()}
    report("starting vllm", 0, 0)
    with ExitStack() as unfinished:
        folder = TemporaryDirectory(prefix="flexinfer-vllm-")
        unfinished.callback(folder.cleanup)
        where = Path(folder.name)
        (where / "config.json").write_text(json.dumps(_config(module)))
        with engine_variables(where), _in_this_process(), _same_randomness(module.device):
            vllm = imported()
            llm = built(vllm, arguments | {"model": str(where)}, where)
        unfinished.pop_all()
    return VllmBackend(
        llm=llm,
        folder=folder,
        sampling_params=vllm.SamplingParams,
        tokenizer=loaded.tokenizer,
        eos_ids=loaded.eos_ids,
        vocab_size=int(module.get_input_embeddings().weight.shape[0]),
        max_seq_length=longest,
        config=config,
        notices=(
            *loaded.notices,
            f"vllm {vllm.__version__}: in this process, with a copy of the weights that is made "
            "anew, adapter merged, after every step",
            f"limits: {config.max_batch_size} sequences at a time, {longest} tokens each",
        ),
        weights=weights,
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


def _executor() -> str:
    """Return how vLLM runs its one worker: among a launcher's processes, or alone."""
    joined = torch.distributed.is_available() and torch.distributed.is_initialized()
    return "external_launcher" if joined else "uni"


@contextmanager
def _in_this_process() -> Iterator[None]:
    """Have the engine built where the trainer's tensors are."""
    before = os.environ.get(PROCESSES)
    os.environ[PROCESSES] = "0"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(PROCESSES, None)
        else:
            os.environ[PROCESSES] = before


@contextmanager
def _same_randomness(device: torch.device) -> Iterator[None]:
    """Leave the random state as it was: vLLM seeds what is the trainer's here."""
    python, arrays = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield
    random.setstate(python)
    numpy.random.set_state(arrays)
