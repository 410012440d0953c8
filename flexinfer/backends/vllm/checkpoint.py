"""A checkpoint as vLLM takes it: a folder or a config by name, loaded anew for every back end."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from flexinfer.backends.vllm.awaited import awaited
from flexinfer.backends.vllm.backend import VllmBackend
from flexinfer.backends.vllm.engine import built, check_config, imported, settings
from flexinfer.backends.vllm.log import engine_variables
from flexinfer.config import EngineConfig, ModelOptions, Report
from flexinfer.engine.requests.limits import known_positions, limits
from flexinfer.errors import UsageError
from flexinfer.weights import names, sources
from flexinfer.weights.families import text_config
from flexinfer.weights.nf4.config import stored_scheme
from flexinfer.weights.place import choose_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from flexinfer.attention.spec import LayerSpec

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as max_lora_rank."""
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
            (options.device == "cpu" and torch.cuda.is_available(), "--device cpu"),
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
        return int(self._config.vocab_size)

    @property
    def _config(self) -> Any:
        """The text model's config, one of transformers'."""
        return text_config(self.source.config, self.source.name)

    def open(self, config: EngineConfig, report: Report) -> VllmBackend:
        """Build vLLM's engine; raises EnvironmentUnfit or NotEnoughMemory with its own words.

        And UsageError for a setting that it has no use for.
        """
        check_config(config)
        known = known_positions(self._config.to_dict())
        longest = limits(config.max_seq_length, None, 1, known, self.source.name).longest
        arguments, tokenizer = self._arguments(config, longest), self.source.tokenizer()
        report("starting vllm", 0, 0)
        with ExitStack() as unfinished:
            folder = TemporaryDirectory(prefix=f"flexinfer-vllm-{os.getpid()}-")
            unfinished.callback(folder.cleanup)
            where = Path(folder.name)
            with engine_variables(where):
                vllm, lora = imported(), self._lora()
                llm = built(vllm, arguments | {"model": self._where(where)}, where, lora)
            unfinished.callback(llm.llm_engine.engine_core.shutdown)
            backend = VllmBackend(
                llm=llm,
                folder=folder,
                sampling_params=vllm.SamplingParams,
                tokenizer=tokenizer,
                eos_ids=self._eos_ids(tokenizer.eos_token_id),
                vocab_size=self.vocab_size,
                max_seq_length=longest,
                config=config,
                notices=(
                    self._dtype()[1],
                    f"vllm {vllm.__version__}: its own copy of the weights, seen by no gate",
                    UNSHARED,
                ),
                lora=lora,
                guard=awaited,
            )
            unfinished.pop_all()
        return backend

    def outline(self) -> tuple[PreTrainedModel, Sequence[LayerSpec]]:
        """Return the text model's shapes on the meta device, and its layers."""
        from flexinfer.models.catalog import build_decoder
        from flexinfer.weights.nf4.model import prepare
        from flexinfer.weights.skeleton import shell

        dtype, _ = self._dtype()
        module: Any = shell(self._config, {}, self.source.origin)
        module.to(dtype)
        specs = build_decoder(module).specs
        prepare(module, self.source, self.options.load_in_4bit, dtype)
        return module, specs

    def _dtype(self) -> tuple[torch.dtype, str]:
        """Return the dtype, chosen as for every other back end, and what to say of it.

        More than whether there is a device is not asked: a context of CUDA would stay.
        """
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return choose_dtype(self.options.dtype, device, self._config.dtype)

    def _where(self, folder: Path) -> str:
        """Return the folder to load: the checkpoint's own, or a config alone for random weights."""
        if self.options.load_format != "dummy":
            return self.source.origin
        if self._text_alone:
            self._config.save_pretrained(folder)
        else:
            (folder / "config.json").write_text(json.dumps(dict(self.source.config)))
        return str(folder)

    @property
    def _text_alone(self) -> bool:
        """Whether the text model is one part of several, of which the others are left out."""
        return "text_config" in self.source.config

    def _arguments(self, config: EngineConfig, longest: int) -> dict[str, Any]:
        """Return the arguments of vllm.LLM but for the model.

        Of a checkpoint that sees or hears the text model alone is loaded.
        """
        made = settings(config, longest, str(self._dtype()[0]).removeprefix("torch."))
        if self.options.load_format != "auto":
            made["load_format"] = "dummy"
        if self.options.load_in_4bit:
            made["quantization"] = "bitsandbytes"
        if self._text_alone:
            made["language_model_only"] = True
        if self.options.adapter is not None:
            made |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": self._rank()}
        return made

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
            self._config.eos_token_id,
            tokenizers,
        ):
            if ids is not None:
                return frozenset([ids] if isinstance(ids, int) else ids)
        return frozenset()
