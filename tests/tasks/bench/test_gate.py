"""The output gate's judgement, on made-up probes and scores: no torch, no model."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pytest

from flexinfer.tasks.bench.compare.gate import Gate, judge
from flexinfer.tasks.reference.samples import Checked, Reference, Scored

NOISE = 0.5
SAMPLES = [
    Checked((1, 2, 3), (10, 11), (-1.0, -2.0)),
    Checked((4, 5), (12, 13), (-3.0, -4.0)),
]
SCORES = [
    [Scored(10, 3.0, 0.0, -1.0), Scored(11, 2.0, 0.0, -2.0)],
    [Scored(12, 1.0, 0.0, -3.0), Scored(13, 0.4, 0.0, -4.0)],
]
OWN = [sample.logprobs for sample in SAMPLES]


def judged(sample: int = 0, position: int = 0, noise: float = NOISE, **changes: Any) -> Gate:
    """Judge the probe after changing the reference's score at one position."""
    scores = [list(row) for row in SCORES]
    scores[sample][position] = scores[sample][position]._replace(**changes)
    return judge(SAMPLES, Reference(scores, OWN, noise, "float32"))


def test_agreement_is_counted_where_the_margin_is_clear() -> None:
    gate = judged()
    assert (gate.checked, gate.agreed, gate.skipped_for_margin) == (3, 3, 1)
    assert (gate.mean_logprob_gap, gate.max_logprob_gap) == (0.0, 0.0)
    assert (gate.first_divergence, gate.problem, gate.longest_context) == (None, None, 5)
    assert gate.summary.startswith("output gate: 3 of 3 tokens are the reference's (1 more within")


def test_another_token_within_the_noise_is_no_fault_but_is_told() -> None:
    gate = judged(1, 1, best=99, behind=0.4)
    assert gate.problem is None
    assert (gate.checked, gate.agreed) == (3, 3)
    assert gate.first_divergence is not None
    assert asdict(gate.first_divergence) == {
        "sample": 1,
        "prompt_tokens": 2,
        "position": 1,
        "token": 13,
        "reference_token": 99,
        "logprob": -4.0,
        "reference_logprob": -4.0,
        "behind": 0.4,
    }


def test_another_token_at_a_clear_margin_is_a_fault() -> None:
    gate = judged(0, 1, best=99, behind=2.0)
    assert (gate.checked, gate.agreed) == (3, 2)
    assert gate.problem == (
        "wrong output: sample 0 (prompt of 3 tokens), new token 1: the engine chose 11 "
        "(log-probability -2.0000), the reference 99; to it 11 has -2.0000, 2 logits behind at a "
        "noise of 0.5"
    )
    assert gate.summary == f"output gate: {gate.problem}"


def test_a_token_far_behind_two_close_ones_is_a_fault() -> None:
    gate = judged(1, 1, best=99, margin=0.1, behind=0.6)
    assert gate.skipped_for_margin == 1
    assert gate.problem is not None
    assert "0.6 logits behind" in gate.problem


def test_the_fault_is_named_before_harmless_differences() -> None:
    scores = [list(row) for row in SCORES]
    scores[0][0] = Scored(98, 0.3, 0.3, -1.0)
    scores[1][0] = Scored(99, 4.0, 4.0, -3.0)
    gate = judge(SAMPLES, Reference(scores, OWN, NOISE, "float32"))
    assert gate.problem is not None
    assert "chose 12" in gate.problem
    assert gate.first_divergence is not None
    assert gate.first_divergence.token == 10


@pytest.mark.parametrize(
    ("dtype", "own", "passes"),
    [
        ("bfloat16", 0.0, False),
        ("bfloat16", 0.026, True),
        ("bfloat16", 0.024, False),
        ("float32", 0.026, True),
    ],
)
def test_log_probabilities_may_be_off_by_twice_the_modules_own(
    dtype: str, own: float, passes: bool
) -> None:
    scores = [[score._replace(logprob=score.logprob + 0.05) for score in row] for row in SCORES]
    own_logprobs = [[score.logprob + own for score in row] for row in scores]
    gate = judge(SAMPLES, Reference(scores, own_logprobs, NOISE, dtype))
    assert gate.mean_logprob_gap == pytest.approx(0.05)
    assert (gate.problem is None) == passes
    if gate.problem is not None:
        assert "0.05 off the reference's on average" in gate.problem


@pytest.mark.parametrize(
    ("dtype", "limit"), [("float32", 1e-4), ("float16", 2e-3), ("bfloat16", 0.02)]
)
def test_a_dtype_explains_some_of_it_by_itself(dtype: str, limit: float) -> None:
    for off, passes in ((0.9 * limit, True), (1.1 * limit, False)):
        scores = [[s._replace(logprob=s.logprob + off) for s in row] for row in SCORES]
        own = [[score.logprob for score in row] for row in scores]
        gate = judge(SAMPLES, Reference(scores, own, NOISE, dtype))
        assert (gate.problem is None) == passes
        assert gate.logprob_limit == limit


@pytest.mark.parametrize("changes", [{"noise": math.nan}, {"logprob": math.nan}])
def test_what_is_not_finite_never_passes(changes: dict[str, float]) -> None:
    gate = judged(**changes)
    assert gate.problem == "wrong output: log-probabilities of the probe are not finite"
    assert gate.noise is gate.mean_logprob_gap is gate.max_logprob_gap is None


def test_a_probe_that_decides_nothing_does_not_pass() -> None:
    gate = judged(noise=3.5)
    assert gate.checked == 0
    assert gate.problem == "wrong output: no logit of the probe stands out of the noise"
