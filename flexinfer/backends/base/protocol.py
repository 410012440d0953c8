"""The one protocol of rollout back ends: what bench and train-grpo may ask of any engine.

A `Checkpoint` is weights in memory (or known by name); a `Backend` is an engine opened over them.
Several back ends may be opened over one checkpoint, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from flexinfer.config import EngineConfig, LoraMode, Report
from flexinfer.engine.requests.outputs import EngineStats, Request, RequestOutput

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from flexinfer.attention.spec import LayerSpec
    from flexinfer.weights.adapters.adapter import Adapter


class Backend(Protocol):
    """An engine that turns requests into samples; whoever opened it closes it."""

    @property
    def name(self) -> str:
        """The word that chose it: `flex`, `hf`, `hf-cb` or `vllm`."""
        ...

    @property
    def notices(self) -> tuple[str, ...]:
        """What runs and why, one line each."""
        ...

    @property
    def stats(self) -> EngineStats:
        """Counters since the back end was opened; they only grow."""
        ...

    @property
    def max_seq_length(self) -> int:
        """Most tokens a sequence may have, prompt and new ones together."""
        ...

    @property
    def adapter(self) -> tuple[Adapter, LoraMode] | None:
        """The adapter in use and how it was brought in; None where there is none to be seen."""
        ...

    def generate(self, requests: Sequence[Request]) -> list[RequestOutput]:
        """Serve every request, in input order; one that cannot be served carries its `error`."""
        ...

    @property
    def policy_version(self) -> int:
        """How often weights were brought in since it was opened: rises with each `refresh`."""
        ...

    def refresh(self) -> None:
        """Bring the adapter in use in anew, from memory; the rollouts stay what they were."""
        ...

    def sleep(self) -> None:
        """Give what only `generate` needs back until its next call, which takes it again."""
        ...

    def close(self) -> None:
        """Give the KV cache and the graphs back; the checkpoint stays usable."""
        ...


class Checkpoint(Protocol):
    """Weights loaded once, over which back ends are opened."""

    @property
    def backend_name(self) -> str:
        """The name of the back ends it opens."""
        ...

    @property
    def model_name(self) -> str:
        """The model's name as reports show it."""
        ...

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding table: token ids are below it."""
        ...

    @property
    def device(self) -> str:
        """Where the weights lie: `cpu` or `cuda`, or `elsewhere` for another process."""
        ...

    @property
    def load_s(self) -> float:
        """Seconds that loading took."""
        ...

    @property
    def module(self) -> PreTrainedModel | None:
        """The Hugging Face module behind it, or None where the back end shows none."""
        ...

    def outline(self) -> tuple[PreTrainedModel, Sequence[LayerSpec]]:
        """Return a module of the weights' shapes and dtypes, maybe on the meta device; its layers.

        A 4-bit weight without memory has the shape of what it stands for.
        """
        ...

    def open(self, config: EngineConfig, report: Report) -> Backend:
        """Build a back end; raises NotEnoughMemory or EnvironmentUnfit where `config` cannot be."""
        ...
