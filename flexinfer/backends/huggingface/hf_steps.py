"""How model.generate is made to sample as the engine does, row by row.

It runs greedily, and a logits processor of ours draws each token: so rows of one batch may have
settings and seeds of their own, log-probabilities are gathered as tokens are drawn (scores of
several steps are never held), no random state is touched, and where logits are the same, samples
are those of the engine. Shape letters: B rows, T tokens so far with padding, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria

from flexinfer.backends.base.call import Call
from flexinfer.engine.requests.outputs import EngineStats
from flexinfer.engine.requests.results import Sample
from flexinfer.engine.steps.state import kind_of
from flexinfer.kernels.sampler import Sampled, SamplerKind, SamplerRows, sample


class Draw(LogitsProcessor):  # type: ignore[misc]  # transformers is untyped here
    """Draws a token for each row, and leaves greedy search nothing else to choose.

    `drawn` is what the last step drew.
    """

    def __init__(self, samples: Sequence[Sample], mask_BT: Tensor) -> None:
        """Take the settings of the rows, and the mask int64 [B, T] of the padded prompts."""
        device, params = mask_BT.device, [sample.params for sample in samples]
        self._kind = max(map(kind_of, params))
        self._penalised = any(p.repetition_penalty != 1.0 for p in params)
        self._mask_BT, self._padding_B = mask_BT.bool(), (mask_BT == 0).sum(1)

        def reals(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)

        def wholes(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        self._rows = SamplerRows(
            temperature=reals([p.temperature for p in params]),
            top_k=wholes([p.top_k for p in params]),
            top_p=reals([p.top_p for p in params]),
            min_p=reals([p.min_p for p in params]),
            penalty=reals([p.repetition_penalty for p in params]),
            seed=wholes([sample.seed for sample in samples]),
            position=self._padding_B,
        )
        self.drawn: Sampled | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores [B, V] that are 0 at the drawn tokens and -inf elsewhere."""
        rows = self._rows._replace(position=input_ids.shape[1] - self._padding_B)
        seen = self._seen(input_ids, scores) if self._kind == SamplerKind.TRUNCATED else None
        self.drawn = sample(scores, rows, self._kind, seen)
        only = torch.full_like(scores, -torch.inf)
        return only.scatter_(1, self.drawn.tokens[:, None], 0.0)

    def _seen(self, ids_BT: Tensor, scores_BV: Tensor) -> Tensor | None:
        """Return which tokens a penalty applies to, bool [B, V]: padding is none of them."""
        if not self._penalised:
            return None
        new = ids_BT.shape[1] - self._mask_BT.shape[1]
        real = torch.nn.functional.pad(self._mask_BT, (0, new), value=True)
        counts = torch.zeros_like(scores_BV).scatter_add_(1, ids_BT, real.to(scores_BV.dtype))
        return counts > 0


class End(StoppingCriteria):  # type: ignore[misc]  # transformers is untyped here
    """Hands each step's tokens to the call, and tells generate which rows are over."""

    def __init__(
        self, samples: Sequence[Sample], draw: Draw, call: Call, stats: EngineStats
    ) -> None:
        """Follow the rows that `draw` draws for."""
        self._samples, self._draw, self._call, self._stats = samples, draw, call, stats
        self._over = [False] * len(samples)
        self._last_s: float | None = None

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Return which rows are over, bool [B]."""
        drawn = self._draw.drawn
        assert drawn is not None, "a step without a draw"
        tokens = drawn.tokens.tolist()
        pairs = torch.stack((drawn.logprobs, drawn.policy_logprobs), 1).tolist()
        first = self._clock()
        for row, one in enumerate(self._samples):
            if not self._over[row]:
                self._stats.decode_tokens += not first
                self._over[row] = self._call.add(one, tokens[row], *pairs[row])
        return torch.tensor(self._over, device=input_ids.device)

    def _clock(self) -> bool:
        """Count the step, its tokens being on the host; return whether it was the prefill."""
        now, first = time.perf_counter(), self._last_s is None
        if self._last_s is None:
            self._stats.ttft_s += [now - self._call.started] * len(self._samples)
            self._stats.prefill_steps += 1
        else:
            self._stats.step_s.append(now - self._last_s)
            self._stats.decode_steps += 1
            self._stats.eager_steps += 1
        self._last_s = now
        return first
