"""What truncation takes from a distribution, computed by the module after the fact.

Continuous batching tells log-probabilities of the truncated distribution alone. Those of the whole
one are lower by the logarithm of the probability that was kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedModel,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from flexinfer.config import SamplingParams

CHUNK = 64
"""Rows of logits in fp32 at a time."""


@torch.no_grad()
def kept_mass(
    module: PreTrainedModel,
    prompt: Sequence[int],
    token_ids: Sequence[int],
    params: SamplingParams,
) -> list[float]:
    """Return the log of the probability that truncation kept, for each token of a sample.

    One forward over the whole sequence, by the module as it is; all values are at most 0.
    """
    ids = torch.tensor([[*prompt, *token_ids]], device=module.device)
    kept = len(token_ids) + 1
    logits_TV = module(input_ids=ids, use_cache=False, logits_to_keep=kept).logits[0, :-1]
    return [value for part in logits_TV.split(CHUNK) for value in _logs(part.float(), params)]


def _logs(logits_TV: Tensor, params: SamplingParams) -> list[float]:
    """Return log(kept / all) of each row, after temperature."""
    scaled = TemperatureLogitsWarper(params.temperature)(None, logits_TV)
    cut = LogitsProcessorList(_warpers(params))(None, scaled)
    logs: list[float] = (cut.logsumexp(-1) - scaled.logsumexp(-1)).clamp(max=0.0).tolist()
    return logs


def _warpers(params: SamplingParams) -> Iterator[object]:
    """Yield transformers' own truncations, in its order."""
    if params.top_k > 0:
        yield TopKLogitsWarper(params.top_k)
    if params.top_p < 1:
        yield TopPLogitsWarper(params.top_p)
    if params.min_p > 0:
        yield MinPLogitsWarper(params.min_p)
