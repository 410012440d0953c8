"""A checkpoint as vLLM takes it: a folder or a config by name, loaded anew for every back end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from flexinfer.backends.base.options import ENGINES_OWN
from flexinfer.backends.vllm import VllmBackend
from flexinfer.backends.vllm_log import engine_variables, failure
from flexinfer.config import EngineConfig, ModelOptions, Report
from flexinfer.engine.requests.limits import known_positions, limits
from flexinfer.errors import EnvironmentUnfit, UsageError, one_line
from flexinfer.weights import names, sources
from flexinfer.weights.families import text_config
from flexinfer.weights.nf4.config import stored_scheme

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from flexinfer.attention.spec import LayerSpec

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as max_lora_rank."""
SEEDS = 2**32
"""Seeds that vLLM takes, as it hands them on to numpy."""
UNSHARED = "no prefix caching: rounds repeat their prompts; each sample computes its prompt anew"


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
        packed = options.load_in_4bit or stored_scheme(source.config, source.name) is not None
        dummy_4bit = packed and options.load_format == "dummy"
        for wrong, flag in (
            (source.dequantised, "--model FILE.gguf"),
            (options.device == "cpu", "--device cpu"),
            (options.lora_mode == "merged", "--lora-mode merged"),
            (random, f"--adapter {options.adapter}"),
            (dummy_4bit, "--load-format dummy in 4 bits"),
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
        """Build vLLM's engine; raises EnvironmentUnfit or NotEnoughMemory with its own words.

        And UsageError for a setting that it has no use for.
        """
        for name in ENGINES_OWN:
            if vars(config)[name] != vars(EngineConfig())[name]:
                raise UsageError(f"--{name.replace('_', '-')} means nothing to vllm")
        known = known_positions(self._config)
        longest = limits(config.max_seq_length, None, 1, known, self.source.name).longest
        settings, tokenizer = self._settings(config, longest), self.source.tokenizer()
        report("starting vllm", 0, 0)
        with ExitStack() as unfinished:
            folder = TemporaryDirectory(prefix="flexinfer-vllm-")
            unfinished.callback(folder.cleanup)
            where = Path(folder.name)
            with engine_variables(where):
                vllm, lora = _imported(), self._lora()
                llm = _built(vllm, settings | {"model": self._where(where)}, lora, where)
            unfinished.pop_all()
        return VllmBackend(
            llm=llm,
            folder=folder,
            sampling_params=vllm.SamplingParams,
            tokenizer=tokenizer,
            eos_ids=self._eos_ids(tokenizer.eos_token_id),
            vocab_size=self.vocab_size,
            max_seq_length=longest,
            config=config,
            notices=(
                f"vllm {vllm.__version__}: its own copy of the weights, seen by no gate",
                UNSHARED,
            ),
            lora=lora,
        )

    def outline(self) -> tuple[PreTrainedModel, Sequence[LayerSpec]]:
        """Return the text model's shapes on the meta device, and its layers."""
        import torch

        from flexinfer.models.catalog import build_decoder
        from flexinfer.weights.nf4.model import prepare
        from flexinfer.weights.skeleton import shell

        dtype: torch.dtype = getattr(torch, self._dtype)
        config = text_config(self.source.config, self.source.name)
        module = shell(config, {}, self.source.origin)
        module.to(dtype)
        specs = build_decoder(module).specs
        prepare(module, self.source, self.options.load_in_4bit, dtype)
        return module, specs

    @property
    def _dtype(self) -> str:
        """The dtype that is asked for; without one bfloat16, as on CUDA everywhere here."""
        return "bfloat16" if self.options.dtype == "auto" else self.options.dtype

    def _where(self, folder: Path) -> str:
        """Return the folder to load: the checkpoint's own, or a config alone for random weights."""
        if self.options.load_format != "dummy":
            return self.source.origin
        if self._text_alone:
            text_config(self.source.config, self.source.name).save_pretrained(folder)
        else:
            (folder / "config.json").write_text(json.dumps(dict(self.source.config)))
        return str(folder)

    @property
    def _text_alone(self) -> bool:
        """Whether the text model is one part of several, of which the others are left out."""
        return "text_config" in self.source.config

    def _settings(self, config: EngineConfig, longest: int) -> dict[str, Any]:
        """Return the arguments of vllm.LLM: its defaults, but for what was asked for.

        Prompts of earlier rounds are not kept, log-probabilities are of what is sampled from, and
        of a checkpoint that sees or hears the text model alone is loaded.
        """
        settings: dict[str, Any] = {
            "skip_tokenizer_init": True,
            "generation_config": "vllm",
            "logprobs_mode": "processed_logprobs",
            "enable_prefix_caching": False,
            "dtype": self._dtype,
            "max_model_len": longest,
            "max_num_seqs": config.max_batch_size,
            "seed": config.seed % SEEDS,
            "enforce_eager": config.cuda_graphs is False,
        }
        optional = {
            "load_format": None if self.options.load_format == "auto" else "dummy",
            "quantization": "bitsandbytes" if self.options.load_in_4bit else None,
            "language_model_only": self._text_alone or None,
            "block_size": config.page_size,
            "kv_cache_memory_bytes": config.kv_memory,
        }
        if self.options.adapter is not None:
            settings |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": self._rank()}
        if config.prefill_tokens != EngineConfig().prefill_tokens:
            _check_step(config)
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


def _check_step(config: EngineConfig) -> None:
    """Raise UsageError where a step of vLLM could not take a token of every sequence."""
    if config.prefill_tokens < config.max_batch_size:
        raise UsageError(
            f"--prefill-tokens {config.prefill_tokens} is less than --max-batch-size "
            f"{config.max_batch_size}, which vllm does not take",
            hint="raise one or lower the other",
        )


def _imported() -> Any:
    """Return the package; raises EnvironmentUnfit where it is broken."""
    try:
        return import_module("vllm")
    except Exception as error:
        raise EnvironmentUnfit(f"vllm cannot be imported: {one_line(error)}") from error


def _built(vllm: Any, settings: Mapping[str, Any], lora: Any, folder: Path) -> Any:
    """Return a vllm.LLM with the adapter `lora`, if any; raises as `failure` tells."""
    try:
        llm = vllm.LLM(**settings)
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
