"""What the two Hugging Face back ends share: requests in, samples served, outputs out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from transformers import PreTrainedModel

from flexinfer.backends.base.call import Call
from flexinfer.backends.base.options import RolloutOptions
from flexinfer.backends.huggingface.lend import Lender
from flexinfer.config import EngineConfig, LoraMode, Report, quiet
from flexinfer.engine.memory import memory_told
from flexinfer.engine.requests.limits import known_positions, limits, refusal
from flexinfer.engine.requests.outputs import EngineStats, Request, RequestOutput, checked
from flexinfer.engine.requests.results import Results, Sample, samples_of
from flexinfer.errors import UsageError
from flexinfer.weights.adapters.adapter import Adapter
from flexinfer.weights.load import LoadedModel

GENERATING = ("generating", "lower --max-batch-size or --max-new-tokens")


class ModuleBackend(ABC):
    """Rolls out with a Hugging Face module as it is at the time, and leaves it as it was.

    `module` is the causal language model itself; PEFT's layers may have been put into it.
    """

    name = ""
    idle: tuple[str, ...] = ()
    """Fields of EngineConfig that mean nothing to the back end."""

    def __init__(
        self,
        loaded: LoadedModel,
        module: PreTrainedModel,
        config: EngineConfig,
        options: RolloutOptions | None = None,
        report: Report = quiet,
    ) -> None:
        """Raise UsageError for settings that this back end cannot carry out."""
        self.options = options or RolloutOptions()
        self.options.check(self.name)
        _check_settings(self.name, config, self.idle)
        self.config, self.stats = config, EngineStats(load_s=loaded.load_s)
        self.max_seq_length = _longest(config, module, loaded.name)
        self.vocab_size = int(module.get_input_embeddings().weight.shape[0])
        self._loaded, self._report = loaded, report
        self._lender: Lender | None = Lender(module, self.options.attn_impl)
        self._calls = 0
        self.notices: tuple[str, ...] = (*loaded.notices, *self._said(module))

    @property
    def adapter(self) -> tuple[Adapter, LoraMode] | None:
        """None: what adapter there is lies in the module itself."""
        return None

    def generate(self, requests: Sequence[Request]) -> list[RequestOutput]:
        """Serve every request, in input order; raises UsageError where it is closed."""
        held = checked(requests)
        lender = self._open()
        bounds = self.max_seq_length, self.vocab_size
        errors = {i: refusal(r, *bounds) or self._refusal(r) for i, r in enumerate(held)}
        good = {i: r for i, r in enumerate(held) if errors[i] is None}
        call = Call(good, Results(good, self._loaded.tokenizer, self._loaded.eos_ids))
        if good:
            self._calls += 1
            samples = [
                sample
                for index, request in good.items()
                for sample in samples_of(
                    index, request, self.max_seq_length, self.config.seed, self._calls
                )
            ]
            with memory_told(*GENERATING):
                self._serve(lender, samples, call)
        return [
            call.outputs[index]
            if errors[index] is None
            else RequestOutput(
                index=index, prompt_token_ids=request.prompt_token_ids, error=errors[index]
            )
            for index, request in enumerate(held)
        ]

    @property
    def policy_version(self) -> int:
        """How often `refresh` was called: the module's own weights are always the newest."""
        return len(self.stats.refresh_s)

    def refresh(self) -> None:
        """Count it: what the module holds at the time of a call is what is rolled out."""
        self._open()
        self.stats.refresh_s.append(0.0)

    def sleep(self) -> None:
        """Do nothing: between calls a compiled forward alone is kept, and no memory of caches."""
        self._open()

    def close(self) -> None:
        """Give up what is kept between calls; the module stays with its owner."""
        if self._lender is not None:
            self._lender.forget()
        self._lender = None

    def _open(self) -> Lender:
        """Return the lender; raises UsageError where the back end is closed."""
        if self._lender is None:
            raise UsageError("the back end is closed", hint="open another one over the same model")
        return self._lender

    def _said(self, module: PreTrainedModel) -> tuple[str, ...]:
        """Say what runs."""
        attention = self.options.attn_impl or module.config._attn_implementation
        return (
            f"attention: transformers' {attention}",
            f"limits: {self.config.max_batch_size} sequences at a time, "
            f"{self.max_seq_length} tokens each",
        )

    def _refusal(self, request: Request) -> str | None:
        """Return why this back end cannot serve a request that others may."""
        return None

    @abstractmethod
    def _serve(self, lender: Lender, samples: Sequence[Sample], call: Call) -> None:
        """Bring every sample to its end, or refuse it."""


def _longest(config: EngineConfig, module: PreTrainedModel, name: str) -> int:
    """Return the most tokens of a sequence; raises UsageError as the engine does."""
    known = known_positions(module.config.to_dict())
    return limits(config.max_seq_length, None, 1, known, name).longest


def _check_settings(name: str, config: EngineConfig, idle: Sequence[str]) -> None:
    """Raise UsageError for the first setting that was given and means nothing here."""
    default = EngineConfig()
    for field_name in idle:
        if (given := vars(config)[field_name]) != vars(default)[field_name]:
            flag = ("no-" if given is False else "") + field_name.replace("_", "-")
            raise UsageError(
                f"--{flag} means nothing to {name}",
                hint="leave it out, or measure that back end in a run of its own",
            )
