"""Back ends held against each other on the probe, on samples made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flexinfer.engine.requests.outputs import Completion, RequestOutput
from flexinfer.tasks.bench.compare.agreement import HELD, ProbeSample, held_against
from flexinfer.tasks.bench.compare.side_by_side import (
    OTHER_ROUNDING,
    OWN_WEIGHTS,
    agreements,
    labels,
)
from flexinfer.tasks.bench.result import BenchResult
from flexinfer.tasks.bench.run import render
from flexinfer.tasks.bench.show.format import words
from tests.support.fake_backend import fake_rig, run, small

CLEAR = (True, True, False, True)
PROBE_FIELDS = {"prompt_tokens", "token_ids", "clear", "prompt_digest"}
PROBE = (ProbeSample(5, (1, 2, 3, 4), CLEAR), ProbeSample(9, (5, 6, 7, 8), CLEAR))
ROW = BenchResult(
    backend="flex", model_name="m", lora_adapter=None, max_batch_size=4, max_seq_length=64,
    n_prompts=4, prompt_length="5:9", max_new_tokens=4, probe=PROBE,
)  # fmt: skip


def other(number: int, position: int, token: int = 99, **row: Any) -> BenchResult:
    """A row of hf whose probe has another token at one place; it shows no reference."""
    samples = [ProbeSample(one.prompt_tokens, one.token_ids) for one in PROBE]
    ids = list(samples[number].token_ids)
    ids[position] = token
    samples[number] = ProbeSample(samples[number].prompt_tokens, tuple(ids))
    return replace(ROW, backend="hf", probe=tuple(samples), **row)


def test_equal_probes_agree_in_every_token() -> None:
    (found,) = agreements([ROW, replace(ROW, backend="hf")], "auto")
    assert (found.tokens, found.agreed, found.parted, found.first) == (8, 8, 0, None)
    assert (
        found.summary == "hf batch 4 against flex batch 4: all 8 tokens of the probe are the same"
    )


def test_the_first_divergence_is_told_and_what_follows_is_not_compared() -> None:
    (found,) = agreements([ROW, other(1, 2)], "auto")
    assert (found.agreed, found.parted, found.wrong) == (6, 1, False)
    assert found.first is not None
    assert (found.first.sample, found.first.position) == (1, 2)
    assert (found.first.token, found.first.other_token, found.first.clear) == (99, 7, False)
    assert found.summary.endswith(
        "1 of 2 samples part, after 6 of 8 tokens; first: sample 1 (prompt of 9 tokens), new token "
        "2: 99, there 7 (within the noise)"
    )


@pytest.mark.parametrize("swapped", [False, True])
def test_a_divergence_at_a_clear_margin_is_wrong_output(swapped: bool) -> None:
    rows = [ROW, other(0, 1)]
    (found,) = agreements(rows[::-1] if swapped else rows, "auto")
    assert found.wrong
    assert "(at a clear margin)" in found.summary


def test_a_clear_divergence_is_named_before_one_within_the_noise() -> None:
    samples = (other(0, 2).probe[0], other(1, 3).probe[1])
    found = held_against("a", "b", samples, PROBE)
    assert found.parted == 2
    assert found.first is not None
    assert (found.first.sample, found.first.clear, found.wrong) == (1, True, True)


def test_merged_and_beside_may_differ() -> None:
    given = {"lora_adapter": "random:8"}
    (found,) = agreements(
        [replace(ROW, lora_mode="merged", **given), other(0, 1, lora_mode="runtime", **given)],
        "auto",
    )
    assert (found.note, found.wrong) == (OTHER_ROUNDING, False)
    assert found.first is not None
    assert found.summary.endswith(OTHER_ROUNDING)


def test_a_row_with_its_adapter_beside_is_held_against_another_such_one() -> None:
    given = {"lora_adapter": "random:8"}
    merged = replace(ROW, lora_mode="merged", **given)
    beside = replace(ROW, lora_mode="runtime", **given)
    _, found = agreements([merged, beside, other(0, 1, lora_mode="runtime", **given)], "auto")
    assert found.against == "flex LoRA runtime batch 4"
    assert (found.note, found.wrong) == ("", True)


@pytest.mark.parametrize(
    "changed", [{"max_batch_size": 8}, {"quantization": "nf4"}, {"prompt_length": "5"}]
)
def test_only_the_same_work_is_compared(changed: dict[str, Any]) -> None:
    assert agreements([ROW, other(0, 1, **changed)], "auto") == ()


def test_random_weights_of_vllm_are_its_own() -> None:
    rows = [ROW, replace(other(0, 0), backend="vllm")]
    (found,) = agreements(rows, "dummy")
    assert (found.note, found.wrong, found.tokens) == (OWN_WEIGHTS, False, 0)
    assert agreements(rows, "auto")[0].wrong


def test_other_prompts_are_not_compared() -> None:
    found = held_against("a", "b", PROBE[:1], PROBE)
    assert found.note == "their probes are of other prompts"
    assert not found.wrong


def test_prompts_of_another_vocabulary_are_other_prompts_and_no_wrong_output() -> None:
    """Two checkpoints of one model that count its vocabulary otherwise; both answer otherwise."""
    rig, flex = fake_rig()
    hf = replace(flex, vocab_size=400, backend_name="hf", opened=[])
    rig = replace(rig, load=lambda name, options, report: {"flex": flex, "hf": hf}[name])
    report = run(rig, small(backends=("flex", "hf")))
    (found,) = report.agreements
    assert (found.note, found.tokens) == ("their probes are of other prompts", 0)
    drawn = [held.opened[0].calls[0][0].prompt_token_ids for held in (flex, hf)]
    assert len(drawn[0]) == len(drawn[1])
    assert drawn[0] != drawn[1]


def test_what_the_gate_took_is_in_its_row() -> None:
    rows = run(fake_rig()[0], small(backends=("flex", "hf"))).results
    assert [row.gate_s for row in rows] == [pytest.approx(0.2)] * 2
    assert run(fake_rig()[0]).results[0].gate_s is None


def test_labels_hold_what_rows_differ_in() -> None:
    rows = [ROW, replace(ROW, quantization="nf4"), replace(ROW, prompt_length="5")]
    assert labels(rows[:1]) == ["flex batch 4"]
    assert labels(rows[:2]) == ["flex plain batch 4", "flex nf4 batch 4"]
    assert labels([rows[0], rows[2]]) == ["flex prompts 5:9 batch 4", "flex prompts 5 batch 4"]
    assert len(set(labels(rows))) == 3


def test_a_back_end_without_a_module_is_held_against_the_others() -> None:
    """The fake back ends show no module: still their tokens are compared, and differ."""
    rig, held = fake_rig()
    plain = held.open_backend
    opened: list[int] = []

    def backend(config: Any) -> Any:
        made = plain(config)
        opened.append(1)
        if len(opened) == 2:
            made.tamper = changed
        return made

    def changed(call: int, outs: list[RequestOutput]) -> list[RequestOutput]:
        def eights(one: Completion) -> Completion:
            return replace(one, token_ids=(8,) * len(one.token_ids))

        return [replace(out, outputs=tuple(map(eights, out.outputs))) for out in outs]

    held.open_backend = backend
    report = run(rig, small(backends=("flex", "hf")))
    (found,) = report.agreements
    assert (found.tokens, found.agreed, found.parted) == (4 * 11, 0, 4)
    assert found.summary in render(report, "table")
    assert found.summary in render(report, "md")
    assert report.as_dict()["agreements"][0]["first"]["token"] == 8
    probe = report.as_dict()["results"][0]["probe"][0]
    assert (set(probe), probe["token_ids"]) == (PROBE_FIELDS, (7,) * 11)
    told = [line for line in words(report) if "output gate" in line]
    assert told == [f"{name} batch 64: {HELD}" for name in ("flex", "flex")]
    assert all(HELD in row.notices for row in report.results)
    assert "flex batch 64: output gate: off" in words(replace(report, agreements=()))[-3]


def test_a_table_tells_at_once_of_pairs_that_are_the_same() -> None:
    same = [ROW, replace(ROW, backend="hf"), replace(ROW, backend="hf-cb")]
    report = run(fake_rig()[0])
    told = replace(report, agreements=agreements(same, "auto"))
    line = "rows of the same work against each other: all 8 tokens of the probe are the same in "
    assert f"{line}2 of 2 pairs" in words(told, brief=True)
    assert not [text for text in words(told, brief=True) if " against flex " in text]
    assert len([text for text in words(told) if " against flex " in text]) == 2
    mixed = replace(report, agreements=agreements([*same, other(1, 2)], "auto"))
    assert f"{line}2 of 3 pairs" in words(mixed, brief=True)
    assert [text for text in words(mixed, brief=True) if "1 of 2 samples part" in text]
    single = replace(report, agreements=agreements(same[:2], "auto"))
    assert single.agreements[0].summary in words(single, brief=True)


def test_wrong_agreement_is_the_verdict() -> None:
    report = replace(run(fake_rig()[0]), agreements=agreements([ROW, other(0, 0)], "auto"))
    assert (report.verdict, report.exit_code) == ("wrong output", 1)
