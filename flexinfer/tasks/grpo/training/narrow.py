"""Micro-batches without the columns that are padding in every one of their rows.

TRL pads prompts (on the left) and completions (on the right) of a whole step to the longest, and
cuts it into micro-batches as wide. Shape letters: B rows, P prompt and C completion columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

PROMPT = ("prompt_ids", "prompt_mask")
COMPLETION = (
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
)
ROWS = ("advantages", "num_items_in_batch")
"""What has no columns."""


def narrowed(batches: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return micro-batches, of [B, P] and [B, C], each with no column that none of its rows needs.

    At least one of each is left. Those with anything else in them, as images, are as they were.
    The bounds of all of them come to the host in one copy.
    """
    if not all(set(batch) <= {*PROMPT, *COMPLETION, *ROWS} for batch in batches):
        return [*batches]
    bounds = torch.stack([_bounds(b["prompt_mask"], b["completion_mask"]) for b in batches])
    return [_cut(batch, *own) for batch, own in zip(batches, bounds.tolist(), strict=True)]


def _cut(batch: dict[str, Any], first: int, end: int) -> dict[str, Any]:
    """Return a micro-batch from column `first` of its prompts up to `end` of its completions."""
    left = {name: batch[name][:, first:] for name in PROMPT}
    right = {name: batch[name][:, :end] for name in COMPLETION if name in batch}
    return batch | left | right


def _bounds(prompt_BP: Tensor, completion_BC: Tensor) -> Tensor:
    """Return the first column of the prompts that is used and the end of the completions', [2]."""
    lead = prompt_BP.any(0).int().argmax()
    columns = torch.arange(1, completion_BC.shape[1] + 1, device=completion_BC.device)
    end = (completion_BC.any(0) * columns).amax().clamp(min=1)
    return torch.stack((lead, end))
