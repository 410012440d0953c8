"""A micro-batch without the columns that are padding in every one of its rows.

TRL pads prompts (on the left) and completions (on the right) of a whole step to the longest, and
cuts it into micro-batches as wide. Shape letters: B rows, P prompt and C completion columns.
"""

from __future__ import annotations

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


def narrowed(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs of a loss, [B, P] and [B, C], with no column that nobody needs.

    At least one of each is left. Inputs with anything else in them, as images, are as they were.
    """
    if not set(inputs) <= {*PROMPT, *COMPLETION, *ROWS}:
        return inputs
    first, end = _bounds(inputs["prompt_mask"], inputs["completion_mask"])
    left = {name: inputs[name][:, first:] for name in PROMPT}
    right = {name: inputs[name][:, :end] for name in COMPLETION if name in inputs}
    return inputs | left | right


def _bounds(prompt_BP: Tensor, completion_BC: Tensor) -> tuple[int, int]:
    """Return the first column of the prompts that is used, and the end of the completions'."""
    lead = prompt_BP.any(0).int().argmax()
    columns = torch.arange(1, completion_BC.shape[1] + 1, device=completion_BC.device)
    end = (completion_BC.any(0) * columns).amax().clamp(min=1)
    first, last = torch.stack((lead, end)).tolist()
    return first, last
