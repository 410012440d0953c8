"""The sampler: supports as transformers cuts them, draws that follow probabilities, counters."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from flexinfer.config import SCALES
from flexinfer.kernels.sampler import (
    CHUNK,
    Sampled,
    SamplerKind,
    SamplerRows,
    _penalise,
    _truncate,
    gumbel,
    sample,
)

GREEDY, RANDOM, TRUNCATED = SamplerKind
CHI2_LIMIT = 33.0
"""Of 7 degrees of freedom: exceeded by chance once in 40,000 tests; the draws are fixed anyway."""


def rows(count: int, **given: Any) -> SamplerRows:
    """Make parameters of `count` rows, off unless given as a number or one a row."""
    off = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "penalty": 1.0, "seed": 0}
    values = off | {"position": list(range(count))} | given
    ints = ("top_k", "seed", "position")
    return SamplerRows(
        **{
            name: torch.as_tensor(
                value, dtype=torch.int64 if name in ints else torch.float32
            ).expand(count)
            for name, value in values.items()
        }
    )


def logits(count: int, vocab: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, vocab, generator=generator) * scale


def upto(count: int) -> Tensor:
    """Return the indices of the first tokens: int32 [1, count]."""
    return torch.arange(count, dtype=torch.int32)[None]


def chi_square(tokens: Tensor, probs: Tensor) -> float:
    """Return Pearson's statistic of drawn tokens against probabilities that are not zero."""
    counts = torch.bincount(tokens, minlength=len(probs)).double()
    expected = probs.double() * len(tokens)
    assert not counts[expected == 0].any()
    kept = expected > 0
    return float(((counts - expected)[kept] ** 2 / expected[kept]).sum())


def test_greedy_is_the_first_argmax() -> None:
    scores = logits(6, 50)
    scores[0, [7, 31]] = 99.0
    found = sample(scores, rows(6, temperature=0.0), GREEDY, None)
    assert torch.equal(found.tokens, scores.argmax(-1))
    assert found.tokens[0] == 7
    expected = scores.log_softmax(-1).max(-1).values
    torch.testing.assert_close(found.logprobs, expected)
    torch.testing.assert_close(found.policy_logprobs, expected)


def same(a: Sampled, b: Sampled) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("seen", [None, torch.ones(64, 200, dtype=torch.bool)])
def test_a_larger_kind_changes_nothing_where_a_smaller_one_does(seen: Tensor | None) -> None:
    scores = logits(64, 200)
    greedy = rows(64, temperature=0.0)
    for kind in (RANDOM, TRUNCATED):
        assert same(sample(scores, greedy, GREEDY, None), sample(scores, greedy, kind, seen))
    random = rows(64, temperature=torch.linspace(0.2, 3.0, 64), seed=list(range(64)))
    assert same(sample(scores, random, RANDOM, None), sample(scores, random, TRUNCATED, seen))


def test_greedy_ids_ignore_what_truncates() -> None:
    scores = logits(8, 200)
    given = rows(8, temperature=0.0, top_k=3, top_p=0.5, min_p=0.2, seed=5)
    found = sample(scores, given, TRUNCATED, None)
    assert torch.equal(found.tokens, scores.argmax(-1))
    torch.testing.assert_close(found.logprobs, scores.log_softmax(-1).max(-1).values)


def warped(scores: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Return scores as transformers' generate cuts them, in its order."""
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    return MinPLogitsWarper(min_p)(None, scores) if min_p else scores


CUTS = [
    (1, 1.0, 0.0), (5, 1.0, 0.0), (300, 1.0, 0.0), (1000, 1.0, 0.0),
    (0, 0.001, 0.0), (0, 0.3, 0.0), (0, 0.9, 0.0), (0, 0.999, 0.0),
    (0, 1.0, 0.01), (0, 1.0, 0.1), (0, 1.0, 0.9),
    (20, 0.8, 0.0), (20, 0.95, 0.05), (3, 1.0, 0.3), (0, 0.7, 0.02),
]  # fmt: skip


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), CUTS)
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_the_support_is_transformers(top_k: int, top_p: float, min_p: float, scale: float) -> None:
    scores = logits(40, 300, scale=scale)
    found = _truncate(scores, rows(40, top_k=top_k, top_p=top_p, min_p=min_p))
    expected = warped(scores, top_k, top_p, min_p)
    assert torch.equal(found, expected)
    assert found.isfinite().any(-1).all()


def test_rows_are_cut_each_by_its_own_parameters() -> None:
    scores = logits(len(CUTS), 300)
    top_k, top_p, min_p = zip(*CUTS, strict=True)
    found = _truncate(scores, rows(len(CUTS), top_k=top_k, top_p=top_p, min_p=min_p))
    alone = [warped(scores[i : i + 1], *cut) for i, cut in enumerate(CUTS)]
    assert torch.equal(found, torch.cat(alone))
    assert len({int(row.isfinite().sum()) for row in found}) > 8


def test_off_keeps_everything() -> None:
    scores = logits(4, 5000, scale=30.0)
    assert torch.equal(_truncate(scores, rows(4)), scores)


@pytest.mark.parametrize("given", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 1.0}])
def test_ties_with_the_last_kept_token_stay(given: dict[str, float]) -> None:
    scores = torch.tensor([[0.0, 2.0, 2.0, 2.0, 2.0, -1.0]])
    assert _truncate(scores, rows(1, **given)).isfinite().tolist() == [[False, *[True] * 4, False]]


def test_the_penalty_is_transformers() -> None:
    scores, penalties = logits(6, 50), [0.5, 1.0, 1.1, 1.3, 2.0, 9.0]
    ids = torch.randint(50, (6, 20), generator=torch.Generator().manual_seed(1))
    seen = torch.zeros(6, 50, dtype=torch.bool).scatter(1, ids, True)
    found = _penalise(scores, torch.tensor(penalties), seen)
    for row, penalty in enumerate(penalties):
        processor = RepetitionPenaltyLogitsProcessor(penalty)
        expected = processor(ids[row : row + 1], scores[row : row + 1].clone())
        assert torch.equal(found[row : row + 1], expected)


def test_penalty_comes_before_temperature_and_cuts() -> None:
    scores = logits(30, 50)
    seen = torch.rand(30, 50, generator=torch.Generator().manual_seed(2)) < 0.5
    given = rows(30, temperature=0.7, top_k=4, penalty=1.8)
    found = sample(scores, given, TRUNCATED, seen)
    target = warped(_penalise(scores, given.penalty, seen) / 0.7, 4, 1.0, 0.0).log_softmax(-1)
    policy = (scores / 0.7).log_softmax(-1)
    for logprobs, expected in ((found.logprobs, target), (found.policy_logprobs, policy)):
        torch.testing.assert_close(logprobs, expected.gather(1, found.tokens[:, None])[:, 0])


def test_greedy_follows_the_penalty() -> None:
    scores = torch.tensor([[3.0, 2.9, 0.0], [-3.0, -1.0, -1.1]])
    seen = torch.tensor([[True, False, False], [False, True, False]])
    found = sample(scores, rows(2, temperature=0.0, penalty=1.5), TRUNCATED, seen)
    assert found.tokens.tolist() == [1, 2]
    expected = torch.tensor([[2.0, 2.9, 0.0], [-3.0, -1.5, -1.1]]).log_softmax(-1)
    torch.testing.assert_close(found.logprobs, expected[[0, 1], [1, 2]])
    torch.testing.assert_close(found.policy_logprobs, scores.log_softmax(-1)[[0, 1], [1, 2]])


DRAWS = 40_000


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_random_draws_follow_softmax(temperature: float) -> None:
    scores = logits(1, 8, scale=1.0)
    given = rows(DRAWS, temperature=temperature, seed=11)
    tokens = sample(scores.expand(DRAWS, 8), given, RANDOM, None).tokens
    assert chi_square(tokens, (scores / temperature).softmax(-1)[0]) < CHI2_LIMIT


@pytest.mark.parametrize("by", ["seed", "position"])
@pytest.mark.parametrize("cut", [(3, 1.0, 0.0), (0, 0.8, 0.0), (0, 1.0, 0.3), (5, 0.9, 0.1)])
def test_truncated_draws_follow_the_renormalised_support(
    cut: tuple[int, float, float], by: str
) -> None:
    scores = logits(1, 8, seed=4, scale=1.0)
    names = ("top_k", "top_p", "min_p")
    counter = {"seed": list(range(DRAWS)), "position": 3} if by == "seed" else {"seed": 3}
    given = rows(DRAWS, **dict(zip(names, cut, strict=True)), **counter)
    found = sample(scores.expand(DRAWS, 8), given, TRUNCATED, None)
    probs = warped(scores, *cut).softmax(-1)[0]
    assert 1 < int((probs > 0).sum()) < 8
    assert chi_square(found.tokens, probs) < CHI2_LIMIT
    torch.testing.assert_close(found.logprobs, probs.log()[found.tokens])


def test_a_biased_sampler_would_be_seen() -> None:
    probs = torch.full((8,), 1 / 8)
    tokens = torch.arange(DRAWS) % 8
    tokens[:600] = 0
    assert chi_square(tokens, probs) > CHI2_LIMIT


@pytest.mark.parametrize("kind", [RANDOM, TRUNCATED])
def test_draws_over_many_chunks_follow_softmax(kind: SamplerKind) -> None:
    """Eight tokens of a long vocabulary: some chunks hold one, some several, some none."""
    places = torch.tensor([0, 1, CHUNK - 1, CHUNK, 3 * CHUNK + 7, 3 * CHUNK + 8, 5 * CHUNK, -1])
    scores = torch.full((1, 5 * CHUNK + 100), -torch.inf)
    scores[0, places] = logits(1, 8, seed=3, scale=1.0)[0]
    top_k = 0 if kind == RANDOM else 7
    tokens = [
        sample(scores.expand(100, -1), rows(100, seed=s, top_k=top_k), kind, None).tokens
        for s in range(40)
    ]
    probs = warped(scores, top_k, 1.0, 0.0).softmax(-1)[0, places]
    found = torch.cat(tokens)
    drawn = (found[:, None] == places % scores.shape[1]).long().argmax(1)
    assert torch.isin(found, places % scores.shape[1]).all()
    assert chi_square(drawn, probs) < CHI2_LIMIT


def test_gumbel_has_its_moments() -> None:
    noise = gumbel(torch.arange(50), torch.arange(50) * 7, upto(20_000)).double()
    assert abs(float(noise.mean()) - 0.577216) < 0.005
    assert abs(float(noise.var()) - math.pi**2 / 6) < 0.01
    quantiles = torch.tensor([0.001, 0.1, 0.5, 0.9, 0.999], dtype=torch.float64)
    exact = -(-quantiles.log()).log()
    found = noise.flatten().sort().values[(quantiles * noise.numel()).long()]
    torch.testing.assert_close(found, exact, atol=0.02, rtol=0.01)


@pytest.mark.parametrize("shift", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, -1, 0), (2**32, 0, 0)])
def test_neighbours_are_independent(shift: tuple[int, int, int]) -> None:
    seeds, positions = torch.arange(40), torch.arange(40) + 100
    ds, dp, di = shift
    a = gumbel(seeds, positions, upto(5000))[:, : 5000 - di]
    b = gumbel(seeds + ds, positions + dp, upto(5000))[:, di:]
    assert abs(float(torch.corrcoef(torch.stack((a.flatten(), b.flatten())))[0, 1])) < 0.01
    assert (a == b).double().mean() < 1e-3


def test_seed_and_position_are_not_interchangeable() -> None:
    assert not torch.equal(
        gumbel(torch.tensor([1]), torch.tensor([2]), upto(9)),
        gumbel(torch.tensor([2]), torch.tensor([1]), upto(9)),
    )


def test_noise_is_a_function_of_the_row_alone() -> None:
    seeds = torch.tensor([0, 5, 2**63 - 1, 5])
    positions = torch.tensor([0, 9, 1, 9])
    together = gumbel(seeds, positions, upto(1000))
    for row in range(4):
        alone = gumbel(seeds[row : row + 1], positions[row : row + 1], upto(700))
        assert torch.equal(together[row, :700], alone[0])
    assert torch.equal(together[1], together[3])


def test_a_sample_does_not_depend_on_its_batch() -> None:
    scores = logits(16, 300)
    given = rows(16, temperature=1.3, top_k=40, min_p=0.01, seed=list(range(16)))
    together = sample(scores, given, TRUNCATED, None)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    shuffled = sample(scores[order], SamplerRows(*(x[order] for x in given)), TRUNCATED, None)
    alone = [
        sample(scores[i : i + 1], SamplerRows(*(x[i : i + 1] for x in given)), TRUNCATED, None)
        for i in range(16)
    ]
    for field in range(3):
        assert torch.equal(together[field][order], shuffled[field])
        assert torch.equal(together[field], torch.cat([one[field] for one in alone]))


def test_noise_is_finite() -> None:
    """One draw in 30 million rounds up to a uniform of 1; a lone kept token must survive it."""
    seed, position, index = 0, 194, 19_855
    noise = gumbel(torch.tensor([seed]), torch.tensor([position]), upto(index + 1))
    assert noise.isfinite().all()
    scores = torch.zeros(1, index + 1)
    scores[0, index] = 50.0
    found = sample(scores, rows(1, top_k=1, seed=seed, position=[position]), TRUNCATED, None)
    assert found.tokens.tolist() == [index]


def test_half_precision_logits_are_sampled_in_fp32() -> None:
    scores = logits(5, 300).bfloat16()
    found = sample(scores, rows(5, temperature=0.0), GREEDY, None)
    expected = scores.float().log_softmax(-1).max(-1).values
    torch.testing.assert_close(found.logprobs, expected)
    assert found.logprobs.dtype == torch.float32
    assert found.tokens.dtype == torch.int64


@pytest.mark.parametrize("kind", SamplerKind)
def test_the_bounds_of_the_settings_keep_everything_finite(kind: SamplerKind) -> None:
    """Logits of 1e4, every temperature, penalty and cut at its bound; a row each."""
    grid = torch.tensor(list(product((0.0, *SCALES), SCALES, (0.0, 1.0), (1e-30, 1.0))))
    temperature, penalty, min_p, top_p = grid.T
    given = rows(
        len(grid), temperature=temperature, penalty=penalty, min_p=min_p, top_p=top_p, seed=3
    )
    scores = logits(1, 300).div(3).clamp(-1, 1).mul(1e4).expand(len(grid), 300)
    seen = (torch.arange(300) % 2 == 0).expand(len(grid), 300)
    found = sample(scores, given, kind, seen if kind == TRUNCATED else None)
    assert found.logprobs.isfinite().all()
    assert found.policy_logprobs.isfinite().all()
