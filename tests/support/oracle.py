"""The oracle: the Hugging Face model itself, eager attention, one prompt at a time, no cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel


@torch.no_grad()
def hf_logits(model: PreTrainedModel, token_ids: Sequence[int]) -> torch.Tensor:
    """Return fp32 logits [len(token_ids), vocab] of a full forward without cache."""
    ids = torch.tensor([list(token_ids)], device=model.device)
    return model(input_ids=ids, use_cache=False).logits[0].float()


def hf_greedy(
    model: PreTrainedModel, prompt: Sequence[int], new_tokens: int
) -> tuple[list[int], list[float]]:
    """Return (ids, log-probabilities) of `new_tokens` greedy tokens, a full forward for each."""
    ids, logprobs = list(prompt), []
    for _ in range(new_tokens):
        row = torch.log_softmax(hf_logits(model, ids)[-1], -1)
        ids.append(int(row.argmax()))
        logprobs.append(float(row[ids[-1]]))
    return ids[len(prompt) :], logprobs
