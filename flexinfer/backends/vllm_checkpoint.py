"""A checkpoint as vLLM takes it: a folder or a config by name, loaded anew for every back end."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from flexinfer.backends.base.options import ENGINES_OWN
from flexinfer.backends.vllm import VllmBackend
from flexinfer.config import EngineConfig, ModelOptions, Report
from flexinfer.engine.requests.limits import known_positions, limits
from flexinfer.errors import EnvironmentUnfit, NotEnoughMemory, UsageError, one_line
from flexinfer.weights import names, sources
from flexinfer.weights.families import text_config

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as max_lora_rank."""


@dataclass(frozen=True)
class VllmCheckpoint:
    """Weights by name: nothing is in memory before a back end is opened."""

    options: ModelOptions
    source: sources.Source
    backend_name: str = "vllm"
    device: str = "elsewhere"
    load_s: float = 0.0
    module: None = None

    @classmethod
    def of(cls, options: ModelOptions, report: Report) -> VllmCheckpoint:
        """Find the checkpoint, downloading where need be; raises UsageError for what vLLM lacks."""
        source = sources.choose(options, names.resolve(options.model), report)
        random = options.adapter is not None and names.random_rank(options.adapter) is not None
        for wrong, flag in (
            (source.dequantised, "--model FILE.gguf"),
            (options.device == "cpu", "--device cpu"),
            (options.lora_mode == "merged", "--lora-mode merged"),
            (random, f"--adapter {options.adapter}"),
        ):
            if wrong:
                raise UsageError(f"{flag} is not for vllm", hint="leave vllm out")
        return cls(options, source)

    @property
    def model_name(self) -> str:
        """The model's name as reports show it."""
        return self.source.name

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding table."""
        return int(self._config["vocab_size"])

    @property
    def _config(self) -> Mapping[str, Any]:
        """The text model's config."""
        config: Mapping[str, Any] = text_config(self.source.config, self.source.name).to_dict()
        return config

    def open(self, config: EngineConfig, report: Report) -> VllmBackend:
        """Build vLLM's engine; raises EnvironmentUnfit or NotEnoughMemory with its own words."""
        for name in ENGINES_OWN:
            if vars(config)[name] != vars(EngineConfig())[name]:
                raise UsageError(f"--{name.replace('_', '-')} means nothing to vllm")
        known = known_positions(self._config)
        longest = limits(config.max_seq_length, None, 1, known, self.source.name).longest
        report("starting vllm", 0, 0)
        vllm = _imported()
        with tempfile.TemporaryDirectory() as folder:
            settings = self._settings(config, longest) | {"model": self._where(Path(folder))}
            llm = _built(vllm, settings)
        tokenizer = self.source.tokenizer()
        return VllmBackend(
            llm=llm,
            sampling_params=vllm.SamplingParams,
            tokenizer=tokenizer,
            eos_ids=self._eos_ids(tokenizer.eos_token_id),
            vocab_size=self.vocab_size,
            max_seq_length=longest,
            config=config,
            notices=(f"vllm {vllm.__version__}: its own copy of the weights, seen by no gate",),
            lora=self._lora(),
        )

    def _where(self, folder: Path) -> str:
        """Return the folder to load: the checkpoint's own, or a config alone for random weights."""
        if self.options.load_format != "dummy":
            return self.source.origin
        (folder / "config.json").write_text(json.dumps(dict(self.source.config)))
        return str(folder)

    def _settings(self, config: EngineConfig, longest: int) -> dict[str, Any]:
        """Return the arguments of vllm.LLM: its defaults, but for what was asked for.

        Prompts of earlier rounds are not kept, and log-probabilities are of what is sampled from.
        """
        settings: dict[str, Any] = {
            "skip_tokenizer_init": True,
            "generation_config": "vllm",
            "logprobs_mode": "processed_logprobs",
            "enable_prefix_caching": False,
            "dtype": self.options.dtype,
            "max_model_len": longest,
            "max_num_seqs": config.max_batch_size,
            "seed": config.seed,
            "enforce_eager": config.cuda_graphs is False,
        }
        optional = {
            "load_format": None if self.options.load_format == "auto" else "dummy",
            "quantization": "bitsandbytes" if self.options.load_in_4bit else None,
            "block_size": config.page_size,
            "kv_cache_memory_bytes": config.kv_memory,
        }
        if self.options.adapter is not None:
            settings |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": self._rank()}
        if config.prefill_tokens != EngineConfig().prefill_tokens:
            settings["max_num_batched_tokens"] = config.prefill_tokens
        return settings | {key: value for key, value in optional.items() if value is not None}

    def _rank(self) -> int:
        """Return the least of vLLM's ranks that holds the adapter's largest."""
        assert self.options.adapter is not None
        file = Path(self.options.adapter).expanduser() / "adapter_config.json"
        options = json.loads(file.read_text())
        own = max(int(options["r"]), *map(int, (options.get("rank_pattern") or {}).values()), 1)
        return next((rank for rank in RANKS if rank >= own), own)

    def _lora(self) -> Any:
        """Return vLLM's request for the adapter, None without one."""
        if self.options.adapter is None:
            return None
        request = import_module("vllm.lora.request").LoRARequest
        return request("adapter", 1, str(Path(self.options.adapter).expanduser()))

    def _eos_ids(self, tokenizers: int | None) -> frozenset[int]:
        """Return the end ids: the generation config's, else the config's or tokenizer's."""
        for ids in (
            self.source.generation.get("eos_token_id"),
            self._config.get("eos_token_id"),
            tokenizers,
        ):
            if ids is not None:
                return frozenset([ids] if isinstance(ids, int) else ids)
        return frozenset()


def _imported() -> Any:
    """Return the package; raises EnvironmentUnfit where it is broken."""
    try:
        return import_module("vllm")
    except Exception as error:
        raise EnvironmentUnfit(f"vllm cannot be imported: {one_line(error)}") from error


def _built(vllm: Any, settings: Mapping[str, Any]) -> Any:
    """Return a vllm.LLM; raises NotEnoughMemory or EnvironmentUnfit with what it says."""
    try:
        return vllm.LLM(**settings)
    except Exception as error:
        said = one_line(error)
        if "memory" in said.lower():
            raise NotEnoughMemory(f"vllm: {said}", hint="lower --max-batch-size") from error
        raise EnvironmentUnfit(f"vllm: {said}") from error
