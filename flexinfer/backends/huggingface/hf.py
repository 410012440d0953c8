"""transformers' own model.generate as a rollout back end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    CompileConfig,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)

from flexinfer.backends.base.call import Call
from flexinfer.backends.base.options import ENGINES_OWN
from flexinfer.backends.huggingface.hf_steps import Draw, End
from flexinfer.backends.huggingface.lend import Lender
from flexinfer.backends.huggingface.module import ModuleBackend
from flexinfer.engine.requests.results import Sample
from flexinfer.errors import EnvironmentUnfit, UsageError


class HfBackend(ModuleBackend):
    """Left-padded batches of `max_batch_size` rows through model.generate.

    A batch runs until its last row is over; rows that were over before are computed on, as
    model.generate does.
    """

    name = "hf"
    idle = ("page_size", "kv_memory", "prefill_tokens", *ENGINES_OWN)

    def _said(self, module: PreTrainedModel) -> tuple[str, ...]:
        """Say what runs; raises UsageError for graphs, EnvironmentUnfit for compiling on a CPU."""
        if self.config.cuda_graphs:
            raise UsageError("--cuda-graphs means nothing to hf", hint="leave it out")
        if not self.options.compiles:
            return (*super()._said(module), "generate: transformers', not compiled")
        if module.device.type == "cpu":
            raise EnvironmentUnfit(
                "--compile-mode: transformers compiles generate on a GPU only",
                hint="leave --compile-mode and --compile-dynamic out",
            )
        how = ", ".join(f"{k} {v}" for k, v in self._compile_settings().items())
        return (*super()._said(module), f"generate: transformers', compiled ({how}), static cache")

    def _compile_settings(self) -> dict[str, Any]:
        """Return the arguments of torch.compile."""
        mode = self.options.compile_mode or "default"
        return {"mode": mode, "dynamic": self.options.compile_dynamic}

    def _serve(self, lender: Lender, samples: Sequence[Sample], call: Call) -> None:
        """Run the batches one after the other."""
        size = self.config.max_batch_size
        for start in range(0, len(samples), size):
            self._report("generating", start, len(samples))
            with lender.loan() as module:
                self._batch(module, samples[start : start + size], call)

    @torch.no_grad()
    def _batch(self, module: PreTrainedModel, samples: Sequence[Sample], call: Call) -> None:
        """Generate for one batch of samples."""
        prompts = [call.requests[sample.request].prompt_token_ids for sample in samples]
        self.stats.prefill_tokens += sum(map(len, prompts))
        ids_BT, mask_BT = left_padded(prompts, module.device)
        draw = Draw(samples, mask_BT)
        module.generate(
            ids_BT,
            attention_mask=mask_BT,
            generation_config=self._generation(max(sample.max_new_tokens for sample in samples)),
            logits_processor=LogitsProcessorList([draw]),
            stopping_criteria=StoppingCriteriaList([End(samples, draw, call, self.stats)]),
        )

    def _generation(self, max_new_tokens: int) -> GenerationConfig:
        """Return a config without any EOS: rows end where `End` says so."""
        settings: dict[str, Any] = {
            "max_new_tokens": max_new_tokens,
            "do_sample": False,
            "use_cache": True,
            "pad_token_id": 0,
        }
        if self.options.compiles:
            settings["cache_implementation"] = "static"
            settings["compile_config"] = CompileConfig(**self._compile_settings())
        return GenerationConfig(**settings)


def left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ids and mask, int64 [B, T], of prompts that end in the same column."""
    longest = max(map(len, prompts))
    ids = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)
