"""vLLM's classes as its sources have them (0.26), as far as flexinfer touches them."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from queue import Queue
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

LLM_ARGUMENTS = frozenset(
    {
        "model",
        "skip_tokenizer_init",
        "generation_config",
        "logprobs_mode",
        "enable_prefix_caching",
        "dtype",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "seed",
        "enforce_eager",
        "load_format",
        "quantization",
        "language_model_only",
        "block_size",
        "kv_cache_memory_bytes",
        "gpu_memory_utilization",
        "enable_lora",
        "max_loras",
        "max_lora_rank",
        "distributed_executor_backend",
    }
)
"""Arguments of vllm.LLM, most of them EngineArgs's; tests/backends/test_vllm_real.py looks."""


@dataclass(kw_only=True)
class FakeParams:
    """vllm.SamplingParams: its names, its defaults and what it refuses."""

    n: int = 1
    temperature: float = 1.0
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    logprobs: int | None = None
    flat_logprobs: bool = False
    detokenize: bool = True

    def __post_init__(self) -> None:
        self.stop_token_ids = self.stop_token_ids or []
        if 0 < self.temperature < 0.01 or self.temperature > 2.0:
            raise ValueError("temperature must be in [0, 2]")
        if self.temperature < 1e-5 and self.n > 1:
            raise ValueError(f"n must be 1 when using greedy sampling, got {self.n}.")


class Flat(SimpleNamespace):
    """vllm.logprobs.FlatLogprobs of sampled tokens alone: one entry a position."""

    def __len__(self) -> int:
        return len(self.start_indices)


def flat(tokens: list[int], logprobs: list[float]) -> Flat:
    """Return log-probabilities as a request with flat_logprobs gets them."""
    count = len(tokens)
    return Flat(
        start_indices=list(range(count)),
        end_indices=list(range(1, count + 1)),
        token_ids=tokens,
        logprobs=logprobs,
    )


@dataclass
class FakeLLM:
    """Answers with 7, 8, 9, ... and log-probabilities -0.7, -0.8, ...; keeps what it was given."""

    settings: dict[str, Any]
    config_json: Any = None
    calls: list[tuple[Any, Any, Any]] = field(default_factory=list)
    ended: int = 0
    loras: list[Any] = field(default_factory=list)
    cut: int = 0
    lost: int = 0
    off: int = 0
    died: bool = False
    halts: BaseException | None = None
    resources: Any = field(default_factory=lambda: SimpleNamespace(engine_dead=False))
    outputs: Queue[Any] = field(default_factory=Queue)
    killed: bool = False
    unending: bool = False
    in_process: bool = False
    loads: list[dict[str, Any]] = field(default_factory=list)

    @property
    def llm_engine(self) -> Any:
        core = SimpleNamespace(
            shutdown=self.shutdown, resources=self.resources, outputs_queue=self.outputs
        )
        return SimpleNamespace(engine_core=core, add_lora=self.add_lora)

    def add_lora(self, lora: Any) -> bool:
        self.loras.append(lora)
        return True

    def shutdown(self, timeout: float | None = None) -> None:
        self.ended += 1
        if self.unending:
            raise RuntimeError("cannot end")

    def collective_rpc(
        self,
        method: Any,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        if self.halts is not None:
            raise self.halts
        if self.died:
            raise RuntimeError("There is no module or parameter named 'model.odd'")
        assert (method, args, self.in_process) == ("reload_weights", (), True)
        ((name, weights),) = (kwargs or {}).items()
        assert name == "weights_iterator"
        self.loads.append({name: tensor.clone() for name, tensor in weights})
        return [None]

    def generate(
        self,
        prompts: Any,
        sampling_params: Any = None,
        *,
        use_tqdm: bool = True,
        lora_request: Any = None,
    ) -> list[Any]:
        assert use_tqdm is False
        if self.halts is not None:
            raise self.halts
        if self.killed:
            self.resources.engine_dead = True
            raise self.outputs.get(timeout=5)  # as vLLM's own client waits, without an end
        torch.rand(1)  # drawing moves the state of the process that it lives in
        if self.died:
            raise RuntimeError("EngineCore encountered an issue. See stack trace for root cause.")
        self.calls.append((prompts, sampling_params, lora_request))
        time.sleep(0.002 * max(p.max_tokens for p in sampling_params))
        return [SimpleNamespace(outputs=self.samples(p)) for p in sampling_params]

    def samples(self, params: Any) -> list[Any]:
        tokens = list(range(7, 7 + params.max_tokens))
        for number, token in enumerate(tokens):
            if token in params.stop_token_ids:
                tokens = tokens[: number + 1]
                break
        tokens = tokens[: len(tokens) - self.cut]
        rows = flat([t + self.off for t in tokens], [-t / 10 for t in tokens])
        one = SimpleNamespace(token_ids=tokens, logprobs=rows)
        return [one] * (params.n - self.lost)


def install(monkeypatch: pytest.MonkeyPatch) -> list[FakeLLM]:
    """Put a stand-in in the place of the package; returns the engines that are built with it.

    As vLLM does, it seeds this process where its engine is to live in it.
    """
    engines: list[FakeLLM] = []

    def llm(**settings: Any) -> FakeLLM:
        assert set(settings) <= LLM_ARGUMENTS
        file = Path(settings["model"]) / "config.json"
        engines.append(FakeLLM(settings, json.loads(file.read_text())))
        engines[-1].in_process = os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0"
        if engines[-1].in_process:
            torch.manual_seed(settings["seed"])
            random.seed(settings["seed"])
        return engines[-1]

    vllm, lora = ModuleType("vllm"), ModuleType("vllm.lora.request")
    vllm.__spec__ = ModuleSpec("vllm", None)
    vars(vllm).update(LLM=llm, SamplingParams=FakeParams, __version__="0.0")
    vars(lora).update(LoRARequest=lambda *given: given)
    for name, module in (("vllm", vllm), ("vllm.lora", ModuleType("l")), (lora.__name__, lora)):
        monkeypatch.setitem(sys.modules, name, module)
    return engines
