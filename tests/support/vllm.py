"""vLLM's classes as its sources have them (0.26), as far as flexinfer touches them."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

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
        "enable_lora",
        "max_loras",
        "max_lora_rank",
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
