"""What --batch-invariant rules out."""

from __future__ import annotations

from flexinfer.engine.memory import PagePlan
from flexinfer.errors import EnvironmentUnfit, NotEnoughMemory
from flexinfer.weights.inference import InferenceWeights


def check_invariant(plan: PagePlan, weights: InferenceWeights, on_cuda: bool) -> None:
    """Refuse what would make a token's bits depend on who shares the batch.

    A sequence that is sent back for want of pages computes its KV anew by other kernels; a side
    path's small products are the library's, which sums by the number of rows.
    """
    if plan.limited:
        raise NotEnoughMemory(
            "--batch-invariant needs KV pages for the whole batch, and memory holds fewer",
            hint="lower --max-batch-size or --max-seq-length, or raise --kv-memory",
        )
    if on_cuda and weights.mode == "runtime":
        raise EnvironmentUnfit(
            "--batch-invariant cannot be had with --lora-mode runtime",
            hint="use --lora-mode merged",
        )
