"""Where weights come from: a folder, a `.gguf` file or a random generator, behind one face."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flexinfer.config import ModelOptions, Report
from flexinfer.errors import UsageError
from flexinfer.weights import checkpoint, dummy, fill, gguf, hub, names, tokenizer
from flexinfer.weights.families import check_family
from flexinfer.weights.generation import read_generation
from flexinfer.weights.nf4.stored import folded

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """A place that weights come from.

    `config` and `generation` are config.json and generation_config.json as read (generation may be
    empty), `origin` is what the model remembers it by.
    """

    name: str
    origin: str
    config: Mapping[str, Any]
    generation: Mapping[str, Any]

    @property
    def stored(self) -> Mapping[str, checkpoint.Stored]:
        """The tensors of a checkpoint folder, none for other sources."""
        return {}

    @property
    def dequantised(self) -> bool:
        """Whether weights come out of a quantisation of another kind."""
        return False

    def check(self, model: PreTrainedModel) -> tuple[str, ...]:
        """Compare with a model that has no memory yet; returns notices, raises UsageError."""
        return ()

    @abstractmethod
    def fill(self, model: PreTrainedModel, report: Report) -> None:
        """Give every parameter and persistent buffer of `model` its value."""

    @abstractmethod
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Return the tokenizer that belongs to the weights."""


@dataclass(frozen=True, kw_only=True)
class Folder(Source):
    """A checkpoint folder: config.json, safetensors and a tokenizer."""

    tensors: Mapping[str, checkpoint.Stored]

    @property
    def stored(self) -> Mapping[str, checkpoint.Stored]:
        """The tensors, by the names they are stored under."""
        return self.tensors

    def check(self, model: PreTrainedModel) -> tuple[str, ...]:
        """Match all names and shapes; say where the weights lie."""
        return (f"weights: {self.origin}", *fill.plan(model, self.stored, self.name).notices)

    def fill(self, model: PreTrainedModel, report: Report) -> None:
        """Copy the stored tensors."""
        fill.fill(model, fill.plan(model, self.stored, self.name), self.stored, report)

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Return the folder's own tokenizer."""
        return tokenizer.from_folder(Path(self.origin))


@dataclass(frozen=True, kw_only=True)
class Gguf(Source):
    """A local `.gguf` file, which carries weights and tokenizer."""

    @property
    def dequantised(self) -> bool:
        """Always."""
        return True

    def check(self, model: PreTrainedModel) -> tuple[str, ...]:
        """Say where the weights lie; whether they are all there is seen while reading."""
        return (f"weights: {self.origin}, dequantised",)

    def fill(self, model: PreTrainedModel, report: Report) -> None:
        """Dequantise and copy."""
        gguf.fill(model, Path(self.origin), report)

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Return the tokenizer in the file."""
        return gguf.read_tokenizer(Path(self.origin))


@dataclass(frozen=True, kw_only=True)
class Dummy(Source):
    """Random weights of a config's shape; text goes through the embedded byte tokenizer."""

    seed: int

    def check(self, model: PreTrainedModel) -> tuple[str, ...]:
        """Say that nothing sensible will come out."""
        return (f"weights: random, seed {self.seed} (--load-format dummy)",)

    def fill(self, model: PreTrainedModel, report: Report) -> None:
        """Draw on the model's own device."""
        dummy.fill(model, self.seed, report)

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Return the embedded byte tokenizer."""
        return tokenizer.embedded()


def choose(options: ModelOptions, found: names.ModelName, report: Report) -> Source:
    """Return the source of `found`, downloading where need be; raises FlexinferError."""
    if options.load_format == "dummy":
        return _dummy(found, options.seed)
    if found.gguf is not None:
        config = gguf.read_config(found.gguf)
        return Gguf(name=found.name, origin=str(found.gguf), config=config, generation={})
    folder = found.folder or hub.folder(found, report)
    config, generation = _configs(folder)
    check_family(config, found.name)
    tensors = folded(checkpoint.stored_tensors(folder))
    return Folder(
        name=found.name, origin=str(folder), config=config, generation=generation, tensors=tensors
    )


def _dummy(found: names.ModelName, seed: int) -> Dummy:
    """Return random weights in the shape of an embedded, a folder's or a cached config."""
    folder = found.folder or (None if found.config else hub.cached_config(found.hub_ids))
    if found.config is not None:
        whole = checkpoint.read_json(names.config_file(found.config))
        config, generation = whole["config"], whole["generation_config"]
    elif folder is not None:
        config, generation = _configs(folder)
    else:
        raise UsageError(
            f"--load-format dummy: no config of {found.name} is embedded or cached",
            hint="give an alias, or a folder with a config.json",
        )
    return Dummy(
        name=found.name, origin=found.name, config=config, generation=generation, seed=seed
    )


def _configs(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (config.json, generation_config.json or {}) of a checkpoint folder."""
    return checkpoint.read_json(folder / "config.json"), read_generation(folder)
