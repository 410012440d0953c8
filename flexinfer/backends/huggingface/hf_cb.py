"""transformers' continuous batching as a rollout back end.

Its batches have one set of sampling settings, so requests are served in groups of equal ones; its
seed is the group's, so samples of a request depend on the others of its call. The samples of a
prompt are requests of their own, which share full pages of it. A repetition penalty is refused:
transformers drops it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, NamedTuple

import torch
from transformers import (
    CompileConfig,
    ContinuousBatchingConfig,
    GenerationConfig,
    PreTrainedModel,
)

from flexinfer.backends.base.call import Call
from flexinfer.backends.base.options import ENGINES_OWN
from flexinfer.backends.huggingface.cb_api import Work, batching_config, check_continuous_batching
from flexinfer.backends.huggingface.cb_session import Got, Served, Session, Wanted, serve
from flexinfer.backends.huggingface.kept_mass import kept_mass
from flexinfer.backends.huggingface.lend import Lender
from flexinfer.backends.huggingface.module import ModuleBackend
from flexinfer.config import EngineConfig, SamplingParams
from flexinfer.engine.requests.outputs import Request
from flexinfer.engine.requests.results import Sample
from flexinfer.engine.requests.seeds import mix
from flexinfer.engine.steps.state import kind_of
from flexinfer.errors import UsageError
from flexinfer.kernels.sampler import SamplerKind

PAGE = 256
"""transformers' own page size."""
AT_ONCE = {"cpu": 1024, "cuda": 8192}
"""Tokens of a step, at most: transformers allocates for all of them; its own on a GPU."""
SWITCHES = "attention: continuous batching may take flash attention instead where it is installed"
RECOMPUTED = (
    "policy log-probabilities: with top-k, top-p or min-p, what truncation kept is computed by one "
    "more forward of the module"
)


class Settings(NamedTuple):
    """What must be equal within a group."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float


class HfCbBackend(ModuleBackend):
    """Groups of requests through a manager of continuous batching, kept or built for each call."""

    name = "hf-cb"
    idle = ENGINES_OWN
    _kept: tuple[Settings, Work] | None = None

    def _said(self, module: PreTrainedModel) -> tuple[str, ...]:
        """Say what runs; raises UsageError for a budget that a CPU cannot keep.

        And EnvironmentUnfit where transformers' continuous batching lacks what is needed.
        """
        check_continuous_batching()
        if self.config.kv_memory is not None and module.device.type != "cuda":
            raise UsageError("--kv-memory means nothing to hf-cb on a CPU", hint="leave it out")
        kept = "kept from call to call" if self.options.persistent_cb else "built for each call"
        return (
            *super()._said(module),
            f"generate: transformers' continuous batching, its manager {kept}",
            *(() if self.options.attn_impl else (SWITCHES,)),
        )

    def _refusal(self, request: Request) -> str | None:
        """Refuse what transformers would drop."""
        if request.sampling.repetition_penalty != 1.0:
            return "hf-cb has no repetition penalty"
        return None

    def sleep(self) -> None:
        """Give up the manager that was kept, with its cache; the next call builds another."""
        lender = self._open()
        if self._kept is not None:
            self._drop(lender)

    def close(self) -> None:
        """Give up the manager that was kept; the module stays with its owner."""
        if self._lender is not None and self._kept is not None:
            self._drop(self._lender)
        super().close()

    def _serve(self, lender: Lender, samples: Sequence[Sample], call: Call) -> None:
        """Serve the groups one after the other."""
        groups: dict[Settings, list[Sample]] = {}
        for sample in samples:
            groups.setdefault(_settings(sample.params), []).append(sample)
        for settings, group in groups.items():
            wanted = [self._wanted(sample, call) for sample in group]
            session = self._session(lender.module, settings, wanted, group)
            self._keep(lender, settings, session.work)
            with lender.loan() as module:
                served = serve(
                    module, session, wanted, lambda n: self._report("generating", n, len(samples))
                )
            self._count(served, wanted, call)
            cut = kind_of(group[0].params) == SamplerKind.TRUNCATED
            said = (served.said(lender.on_gpu), *((RECOMPUTED,) if cut else ()))
            self.notices = tuple(dict.fromkeys((*self.notices, *said)))
            for one, sample in zip(wanted, group, strict=True):
                self._replay(lender.module, sample, served.results[one.key], call)

    def _wanted(self, sample: Sample, call: Call) -> Wanted:
        """Return what to ask for; a stop string is looked for when the tokens are there."""
        eos = () if sample.params.ignore_eos else tuple(sorted(self._loaded.eos_ids))
        prompt = call.requests[sample.request].prompt_token_ids
        return Wanted(f"{sample.request}-{sample.number}", prompt, sample.max_new_tokens, eos)

    def _session(
        self,
        module: PreTrainedModel,
        settings: Settings,
        wanted: Sequence[Wanted],
        group: Sequence[Sample],
    ) -> Session:
        """Return how to serve a group."""
        work = Work(
            max_prompt_length=max(len(one.prompt) for one in wanted),
            max_generated_length=max(one.max_new_tokens for one in wanted),
            num_requests=min(len(wanted), self.config.max_batch_size),
        )
        sampled = settings._asdict() | {"min_p": settings.min_p or None, "do_sample": True}
        generation = GenerationConfig(
            **sampled if settings.temperature > 0 else {"do_sample": False},
            max_new_tokens=work.max_generated_length,
            eos_token_id=-1,
            pad_token_id=0,
        )
        seed = mix(*(sample.seed for sample in group)) % 2**32
        return Session(
            generation=generation,
            batching=self._batching(module, work, seed),
            work=work,
            persistent=self.options.persistent_cb,
            seed=seed,
            holds=self.options.attn_impl is not None,
            shrinks=module.device.type == "cuda",
        )

    def _batching(self, module: PreTrainedModel, work: Work, seed: int) -> ContinuousBatchingConfig:
        """Return transformers' defaults, but for what was asked for and memory that is not its own.

        Its default is most of what is free, and a trainer needs that beside a manager that is kept.
        Prefixes are not kept from call to call: the weights may have changed in between.
        """
        config, page, device = self.config, self.config.page_size or PAGE, module.device
        kept = self.options.persistent_cb
        settings: dict[str, Any] = {
            "page_size": page,
            "max_requests_per_batch": config.max_batch_size,
            "allow_block_sharing": not kept,
            "use_cuda_graph": config.cuda_graphs,
            "auto_switch_to_flash": self.options.attn_impl is None,
            "return_logprobs": True,
            "seed": seed,
        }
        if config.prefill_tokens != EngineConfig().prefill_tokens:
            settings["max_batch_tokens"] = config.prefill_tokens
        if config.kv_memory is not None:
            torch.cuda.empty_cache()  # transformers does so too before it takes its share
            free, _ = torch.cuda.mem_get_info(device)
            settings["max_memory_percent"] = min(1.0, config.kv_memory / free)
        elif kept or device.type == "cpu":
            settings["num_blocks"] = (ceil(work.longest / page) + 1) * work.num_requests + 2
            at_once = (work.max_prompt_length + 1) * work.num_requests
            most = settings.get("max_batch_tokens", AT_ONCE[device.type])
            settings["max_batch_tokens"] = min(most, at_once)
        if self.options.compiles:
            compiled = CompileConfig(
                mode=self.options.compile_mode or "default",
                dynamic=self.options.compile_dynamic,
                fullgraph=False,
            )
            settings |= {"varlen_compile_config": compiled, "decode_compile_config": compiled}
        return batching_config(settings)

    def _keep(self, lender: Lender, settings: Settings, work: Work) -> None:
        """Drop a kept manager that was built for other settings or for less work."""
        if not self.options.persistent_cb:
            return
        if self._kept is not None and not _covers(self._kept, settings, work):
            self._drop(lender)
        self._kept = self._kept or (settings, work)

    def _drop(self, lender: Lender) -> None:
        """Let transformers give the kept manager's memory back."""
        with lender.loan() as module:
            module.destroy_cached_continuous_batching_manager()
        self._kept = None

    def _count(self, served: Served, wanted: Sequence[Wanted], call: Call) -> None:
        """Count what the loop did; it does not tell prefill steps from others."""
        stats = self.stats
        stats.prefill_tokens += sum(len(one.prompt) for one in wanted)
        results = served.results.values()
        stats.decode_tokens += sum(max(0, len(got.token_ids) - 1) for got in results)
        stats.decode_steps += served.steps
        stats.graph_replays += served.steps if served.graphs else 0
        stats.eager_steps += 0 if served.graphs else served.steps
        stats.ttft_s += [got.first_s - call.started for got in results if got.first_s is not None]

    def _replay(self, module: PreTrainedModel, sample: Sample, got: Got, call: Call) -> None:
        """Hand a sample's tokens to the call; one that did not come to its end is an error."""
        if got.error is not None:
            return call.refuse(sample, got.error)
        kept = [0.0] * len(got.token_ids)
        if kind_of(sample.params) == SamplerKind.TRUNCATED:
            with Lender(module, None).loan():
                prompt = call.requests[sample.request].prompt_token_ids
                kept = kept_mass(module, prompt, got.token_ids, sample.params)
        for token, logprob, mass in zip(got.token_ids, got.logprobs, kept, strict=True):
            if call.add(sample, token, logprob, logprob + mass):
                return None
        short = f"{len(got.token_ids)} of {sample.max_new_tokens} tokens came back"
        return call.refuse(sample, f"continuous batching: {short}, without an end")


def _settings(params: SamplingParams) -> Settings:
    """Return the settings that matter: greedy rows are not truncated."""
    if params.temperature == 0:
        return Settings(0.0, 0, 1.0, 0.0)
    return Settings(params.temperature, params.top_k, params.top_p, params.min_p)


def _covers(kept: tuple[Settings, Work], settings: Settings, work: Work) -> bool:
    """Whether a manager that was built for `kept` serves this work as well."""
    then, sized = kept
    return (
        then == settings
        and work.longest <= sized.longest
        and work.num_requests <= sized.num_requests
    )
