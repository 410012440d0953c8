"""The seed workload is the one that the peers' figures were measured with."""

from __future__ import annotations

import hashlib
import json

import pytest

from flexinfer.tasks.workload import prompt_lengths, workload

GOLDEN = {
    151_936: "c987cc8f13ee2d4fbb6f0aa04b28aeab763f3032154159a8741f7ed5f423c800",
    262_144: "c987cc8f13ee2d4fbb6f0aa04b28aeab763f3032154159a8741f7ed5f423c800",
    100_000: "961ef4cc8be2c9c9e571d429683b30d08839dc9f63861c49e3f1495377e3ef5a",
}
"""sha256 of json.dumps of the 64 prompts that the peers' script draws, by vocabulary."""


@pytest.mark.parametrize("vocab", GOLDEN)
def test_golden(vocab: int) -> None:
    prompts = workload(64, vocab, (64, 256))
    text = json.dumps([list(prompt) for prompt in prompts])
    assert hashlib.sha256(text.encode()).hexdigest() == GOLDEN[vocab]


def test_golden_lengths_and_ids_by_hand() -> None:
    prompts = workload(64, 151_936, (64, 256))
    assert [len(prompt) for prompt in prompts[:6]] == [162, 171, 74, 130, 194, 188]
    assert sum(map(len, prompts)) == 10_456
    assert prompts[0][:4] == (32_275, 106_296, 19_677, 106_274)


@pytest.mark.parametrize("vocab", [2, 3, 258, 512, 1000, 1001, 1999])
def test_tiny_vocabularies_give_their_upper_half(vocab: int) -> None:
    ids = {i for prompt in workload(8, vocab, (30, 40)) for i in prompt}
    assert vocab // 2 <= min(ids) <= max(ids) < vocab


def test_another_seed_is_another_workload() -> None:
    assert workload(4, 5000, (5, 9)) != workload(4, 5000, (5, 9), seed=1)


def test_both_ends_of_the_length_range_occur() -> None:
    assert {len(prompt) for prompt in workload(64, 5000, (3, 5))} == {3, 4, 5}


@pytest.mark.parametrize("vocab", [400, 151_936])
def test_lengths_are_known_without_the_vocabulary(vocab: int) -> None:
    prompts = workload(5, vocab, (3, 50), seed=7)
    assert prompt_lengths(5, (3, 50), seed=7) == [len(prompt) for prompt in prompts]
