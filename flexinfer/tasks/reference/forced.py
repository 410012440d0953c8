"""What engines are held against: the Hugging Face module, one sequence at a time.

Teacher forcing: prompt and the engine's own tokens go through one forward without a cache, and each
row of logits is an opinion of the token that follows. Only the rows of new tokens are projected
onto the vocabulary.

The module runs twice over every sample. Once with its arithmetic a dtype wider than its weights
(see Widened): that is the reference. Once as it is: how far that is off shows what rounding does to
this model on this device, whoever computes it, and an engine need not do better.

**Noise** (logits): at each position the span of the module's own error over the best logits is how
far rounding moves a margin. It is the largest span seen, times SAFETY since an engine rounds in
other places, and at least one unit in the last place of the largest logit, which is what rounding
the logits alone does.

Shape letters: N new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from transformers import PreTrainedModel

from flexinfer.tasks.reference.samples import Checked, Reference, Scored

SAFETY = 1.5
BEST = 8


class Widened(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own hook
    """Within it every operation takes and makes floating tensors of `dtype`, weights included.

    Nothing is changed, and nothing is copied but what an operation is working on: the same module
    computes as if it had been cast, with one weight at a time. Embeddings widen what they look up,
    not their tables.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        """Compute in `dtype`."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch's constructor
        self._dtype = dtype

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operation on widened arguments."""
        if func is torch.ops.aten.embedding.default:
            return self._wide(func(*args, **(kwargs or {})))
        return func(*tree_map(self._wide, args), **tree_map(self._wide, kwargs or {}))

    def _wide(self, value: Any) -> Any:
        """Widen a floating tensor, or the name of a floating dtype."""
        if isinstance(value, Tensor) and value.is_floating_point():
            return value.to(self._dtype)
        if isinstance(value, torch.dtype) and value.is_floating_point:
            return self._dtype
        return value


@torch.no_grad()
def teacher_forced(module: PreTrainedModel, samples: Sequence[Checked]) -> Reference:
    """Score every new token of `samples` and measure the noise; the module is left as it is."""
    plain = [_logits(module, sample) for sample in samples]
    dtype = plain[0].dtype
    with Widened(torch.float64 if dtype == torch.float32 else torch.float32):
        exact = [_logits(module, sample) for sample in samples]
    pairs = list(zip(plain, exact, strict=True))
    ulp = max(float(rows.abs().max()) for rows in exact) * torch.finfo(dtype).eps
    ids = [sample.token_ids for sample in samples]
    return Reference(
        scores=[_scores(rows, chosen) for rows, chosen in zip(exact, ids, strict=True)],
        own_logprobs=[_logprobs(rows, chosen) for rows, chosen in zip(plain, ids, strict=True)],
        noise=max(SAFETY * max(_span(a, b) for a, b in pairs), ulp),
        dtype=str(dtype).removeprefix("torch."),
    )


def _logits(module: PreTrainedModel, sample: Checked) -> Tensor:
    """Return the logits [N, V] that choose the new tokens of one sequence."""
    ids = torch.tensor([[*sample.prompt, *sample.token_ids]], device=module.device)
    out = module(input_ids=ids, use_cache=False, logits_to_keep=len(sample.token_ids) + 1)
    logits: Tensor = out.logits[0, :-1]
    return logits


def _span(plain_NV: Tensor, exact_NV: Tensor) -> float:
    """Return how far the module's own error moves a margin of its best tokens, at most."""
    best = exact_NV.topk(min(BEST, exact_NV.shape[1]), dim=-1)
    error = plain_NV.to(exact_NV.dtype).gather(-1, best.indices) - best.values
    return float((error.amax(-1) - error.amin(-1)).max())


def _chosen(logits_NV: Tensor, token_ids: Sequence[int]) -> Tensor:
    """Return the logits [N] of the tokens."""
    return logits_NV.gather(-1, torch.tensor(token_ids, device=logits_NV.device)[:, None])[:, 0]


def _logprobs(logits_NV: Tensor, token_ids: Sequence[int]) -> list[float]:
    """Return the tokens' log-probabilities, summed in fp32 at least."""
    rows = logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()
    logprobs: list[float] = (_chosen(rows, token_ids) - rows.logsumexp(-1)).tolist()
    return logprobs


def _scores(logits_NV: Tensor, token_ids: Sequence[int]) -> list[Scored]:
    """Return what the reference says of each token."""
    best = logits_NV.topk(2, dim=-1)
    top, second = best.values.unbind(-1)
    return [
        Scored(*row)
        for row in zip(
            best.indices[:, 0].tolist(),
            (top - second).tolist(),
            (top - _chosen(logits_NV, token_ids)).tolist(),
            _logprobs(logits_NV, token_ids),
            strict=True,
        )
    ]
