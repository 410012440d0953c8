"""The output gate: a fast wrong answer gets no figure.

Before anything is timed, the engine under test decodes a probe greedily, and the Hugging Face
module over the same weights (no pages, no graphs, no own kernels) says what it would have chosen
after the same tokens, position by position. Two right computations in one dtype differ by its
rounding, so the reference must be followed only where its choice is clear: where its best logit
leads by more than the noise that was measured on the spot (see reference.forced). Log-probabilities
may be off on average by GAP_SAFETY times what the module's own are, or by what rounding the logits
alone explains (LEAST_LIMITS).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from flexinfer.tasks.reference.samples import Checked, Reference, Scored

GAP_SAFETY = 2.0
LEAST_LIMITS: Mapping[str, float] = {"float32": 1e-4, "float16": 2e-3, "bfloat16": 0.02}
"""Nats: about half a unit in the last place of a logit of 8, by dtype; fp32: as parity tests."""


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """Where engine and reference choose differently: new token `position` of a probe's `sample`.

    Both log-probabilities are of the engine's `token`; `behind` is in logits.
    """

    sample: int
    prompt_tokens: int
    position: int
    token: int
    reference_token: int
    logprob: float
    reference_logprob: float
    behind: float


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The outcome: `checked` tokens had a clear margin, `agreed` of them are the reference's.

    `skipped_for_margin` had none, so only had to be within the noise of the best. `noise` is in
    logits, the gaps of log-probabilities in nats over all tokens, `longest_context` in tokens.
    `problem` is why the gate is not passed; with it figures may be missing.
    """

    checked: int = 0
    agreed: int = 0
    skipped_for_margin: int = 0
    mean_logprob_gap: float | None = None
    max_logprob_gap: float | None = None
    logprob_limit: float | None = None
    first_divergence: Divergence | None = None
    noise: float | None = None
    dtype: str | None = None
    longest_context: int = 0
    problem: str | None = None

    @property
    def summary(self) -> str:
        """One line for the reader of the figures."""
        if self.problem is not None:
            return f"output gate: {self.problem}"
        return (
            f"output gate: {self.agreed} of {self.checked} tokens are the reference's "
            f"({self.skipped_for_margin} more within the noise of {self.noise:.2g} logits in "
            f"{self.dtype}), mean log-probability gap {self.mean_logprob_gap:.2g}; contexts up to "
            f"{self.longest_context} tokens"
        )


def judge(samples: Sequence[Checked], reference: Reference) -> Gate:
    """Compare a probe's samples with the reference's scores of them, in the same order."""
    noise, dtype = reference.noise, reference.dtype
    scored = [score for scores in reference.scores for score in scores]
    gaps = _gaps([sample.logprobs for sample in samples], scored)
    mean_gap, own_gap = mean(gaps), mean(_gaps(reference.own_logprobs, scored))
    limit = max(GAP_SAFETY * own_gap, LEAST_LIMITS[dtype])
    sound = all(map(math.isfinite, (noise, mean_gap, own_gap)))
    clear = [score for score in scored if score.margin > noise]
    differences = _differences(samples, reference.scores)
    return Gate(
        checked=len(clear),
        agreed=sum(score.behind == 0 for score in clear),
        skipped_for_margin=len(scored) - len(clear),
        mean_logprob_gap=mean_gap if sound else None,
        max_logprob_gap=max(gaps) if sound else None,
        logprob_limit=limit if sound else None,
        first_divergence=differences[0] if differences and sound else None,
        noise=noise if sound else None,
        dtype=dtype,
        longest_context=max(len(sample.prompt) + len(sample.token_ids) for sample in samples),
        problem=_problem(differences, noise, mean_gap, limit, len(clear))
        if sound
        else "wrong output: log-probabilities of the probe are not finite",
    )


def _gaps(found: Sequence[Sequence[float]], scored: Sequence[Scored]) -> list[float]:
    """Return how far log-probabilities are off the reference's."""
    flat = (logprob for sample in found for logprob in sample)
    return [abs(logprob - score.logprob) for logprob, score in zip(flat, scored, strict=True)]


def _differences(
    samples: Sequence[Checked], scores: Sequence[Sequence[Scored]]
) -> list[Divergence]:
    """Return every position where the engine's token is not the reference's best."""
    return [
        Divergence(
            sample=number,
            prompt_tokens=len(sample.prompt),
            position=position,
            token=token,
            reference_token=score.best,
            logprob=logprob,
            reference_logprob=score.logprob,
            behind=score.behind,
        )
        for number, (sample, row) in enumerate(zip(samples, scores, strict=True))
        for position, (token, logprob, score) in enumerate(
            zip(sample.token_ids, sample.logprobs, row, strict=True)
        )
        if score.behind > 0
    ]


def _problem(
    differences: Sequence[Divergence], noise: float, mean_gap: float, limit: float, checked: int
) -> str | None:
    """Return what is wrong in one line, or None."""
    far = next((d for d in differences if d.behind > noise), None)
    if far is not None:
        return (
            f"wrong output: sample {far.sample} (prompt of {far.prompt_tokens} tokens), new token "
            f"{far.position}: the engine chose {far.token} (log-probability {far.logprob:.4f}), "
            f"the reference {far.reference_token}; to it {far.token} has "
            f"{far.reference_logprob:.4f}, {far.behind:.4g} logits behind at a noise of {noise:.2g}"
        )
    if mean_gap > limit:
        return (
            f"wrong output: log-probabilities are {mean_gap:.4g} off the reference's on average; "
            f"in this dtype {limit:.2g} is the limit"
        )
    return None if checked else "wrong output: no logit of the probe stands out of the noise"
