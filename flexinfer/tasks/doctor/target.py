"""The model that is asked about: its name, its config and whether its weights are here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flexinfer.errors import EnvironmentUnfit, UsageError
from flexinfer.tasks.doctor.environment import Environment
from flexinfer.tasks.doctor.facts.hub_cache import has_weights, snapshot
from flexinfer.weights.checkpoint import read_json
from flexinfer.weights.names import ModelName, choose_default, config_file, resolve


@dataclass(frozen=True, kw_only=True)
class Target:
    """A model by name; `config` is its text model's, None where no config.json is at hand.

    `asked` says that the user named it; `folder` holds its weights, where they are on this machine;
    `trouble` says in one line why there is no config; `fault`, that it is there but cannot be read.
    """

    name: ModelName
    asked: bool
    config: Mapping[str, Any] | None = None
    folder: Path | None = None
    trouble: str = ""
    fault: UsageError | None = None

    @property
    def label(self) -> str:
        """What the user calls it."""
        return self.name.name

    @property
    def is_local(self) -> bool:
        """Whether no hub is needed to load it."""
        return self.folder is not None or self.name.gguf is not None

    @property
    def family(self) -> str:
        """The text model's `model_type`, empty where unknown."""
        return str((self.config or {}).get("model_type", ""))


def find_target(environment: Environment, model: str | None, cuda: bool) -> Target:
    """Resolve `--model`, or choose as the other commands do; raises UsageError for a bad name."""
    try:
        name = resolve(model if model is not None else choose_default(cuda)[0])
    except ImportError as error:
        raise EnvironmentUnfit(
            f"--model {model}: the hub's library cannot be imported: {error}",
            hint="pip install -U huggingface_hub",
        ) from error
    cached = [path for repo in name.hub_ids if (path := snapshot(environment, repo))]
    folders = [path for path in (name.folder, *cached) if path is not None]
    complete = next((path for path in folders if has_weights(path)), None)
    known = Target(name=name, asked=model is not None, folder=complete)
    embedded = [config_file(name.config)] if name.config else []
    files = [path / "config.json" for path in folders] + embedded
    if name.gguf is not None:
        return replace(known, trouble="a .gguf file is read when it is loaded")
    if not files:
        return replace(known, trouble="its config.json is not on this machine")
    try:
        return replace(known, config=read_config(files[0]))
    except UsageError as error:
        return replace(known, trouble=error.message, fault=error)


def read_config(path: Path) -> Mapping[str, Any]:
    """Return the text model's config in a file; raises UsageError where it cannot be read."""
    try:
        return text_part(read_json(path))
    except (AttributeError, TypeError) as error:
        raise UsageError(
            f"{path} makes no sense: {error}", hint="download the checkpoint again"
        ) from error


def text_part(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the text model's config of a config.json, or of an embedded file that wraps one."""
    raw = raw.get("config", raw)
    inner = raw.get("text_config")
    return raw if inner is None else {"model_type": f"{raw.get('model_type')}_text", **inner}
