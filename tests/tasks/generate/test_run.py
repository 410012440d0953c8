"""A run over the fake engine: order, counts, seeds, sampling and room; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.errors import NotEnoughMemory, UsageError, WriteFailed
from flexinfer.tasks.generate.input import Item
from flexinfer.tasks.generate.records import Record
from flexinfer.tasks.generate.requests import GenerateConfig
from flexinfer.tasks.generate.run import GenerateReport, run_generate
from tests.support.fake_engine import EOS, LONGEST, Stage, install


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage()
    install(monkeypatch, stage)
    return stage


def items(*prompts: str, **sampling: Any) -> tuple[Item, ...]:
    return tuple(Item(id=n, prompt=p, sampling=sampling) for n, p in enumerate(prompts))


def run(
    asked: Sequence[Item], *, engine: EngineConfig | None = None, **more: Any
) -> tuple[GenerateReport, list[Record]]:
    records: list[Record] = []
    config = GenerateConfig(
        model=ModelOptions(model="m"), engine=engine or EngineConfig(), items=tuple(asked), **more
    )
    return run_generate(config, records.append), records


def test_a_record_says_what_came_out_and_from_what(stage: Stage) -> None:
    _, (record,) = run(items("ab", max_new_tokens=9))
    assert list(record)[:3] == ["id", "prompt_token_ids", "outputs"]
    assert record["prompt_token_ids"] == [97, 98]
    assert record["outputs"] == [
        {"text": "AB", "token_ids": [65, 66, EOS], "finish_reason": "stop", "stop": EOS}
    ]
    assert record["model"] == "m"
    assert record["sampling"]["max_new_tokens"] == 9


def test_records_come_in_input_order_each_as_early_as_possible(stage: Stage) -> None:
    asked = (*items("a first", "b", "c"), Item(id=3, error="bad"))
    report, records = run(asked)
    assert [r["id"] for r in records] == [0, 1, 2, 3]
    assert records[3] == {"id": 3, "prompt_token_ids": [], "outputs": [], "error": "bad"}
    assert (report.tally.done, report.tally.failed, report.tally.new_tokens) == (3, 1, 12)
    assert stage.engines[0].closed


def test_logprobs_are_there_where_they_were_asked_for(stage: Stage) -> None:
    _, (without,) = run(items("ab"))
    _, (with_them,) = run(items("ab"), sampling={"logprobs": True})
    assert "logprobs" not in without["outputs"][0]
    sample = with_them["outputs"][0]
    assert sample["logprobs"] == sample["policy_logprobs"] == [-0.5] * len(sample["token_ids"])


def test_a_line_beats_the_command_line_beats_the_checkpoint(stage: Stage) -> None:
    stage.generation_config = {"do_sample": True, "top_k": 1, "temperature": 0.1, "top_p": 0.5}
    asked = (Item(id=0, prompt="a"), Item(id=1, prompt="a", sampling={"temperature": 2.0, "n": 2}))
    report, records = run(asked, sampling={"temperature": 1.0, "top_k": -1})
    values = [[r["sampling"][k] for k in ("temperature", "top_k", "top_p")] for r in records]
    assert values == [[1.0, 0, 0.5], [2.0, 0, 0.5]]
    assert len(records[1]["outputs"]) == 2
    assert report.sampling.top_k == 0


def test_wrong_values_of_a_line_are_its_own_error(stage: Stage) -> None:
    _, records = run([*items("a", top_k=-5), Item(id=1, prompt="b")])
    assert records[0]["error"].startswith("top_k is -5; allowed: 0 or -1 (off)")
    assert "error" not in records[1]


def test_wrong_values_for_all_stop_before_loading(stage: Stage) -> None:
    with pytest.raises(UsageError, match="--top-k"):
        run(items("a"), sampling={"top_k": -5})
    assert not stage.options


def test_seeds_do_not_depend_on_what_else_is_run(stage: Stage) -> None:
    asked = (*items("a", "b"), Item(id=2, prompt="c", sampling={"seed": 5}), Item(id=3, prompt="d"))
    _, whole = run(asked, engine=EngineConfig(seed=10))
    assert [r["sampling"]["seed"] for r in whole] == [10, 11, 5, 13]
    finished = {r["id"]: r for r in whole[:2]}
    report, rest = run(asked, engine=EngineConfig(seed=10), finished=finished)
    assert rest == whole[2:]
    assert report.resumed == 2


def test_a_resumed_run_of_other_options_is_refused_before_anything_runs(stage: Stage) -> None:
    _, whole = run(items("a", "b"))
    finished = {0: whole[0]}
    with pytest.raises(UsageError, match="made with another prompt_token_ids"):
        run(items("other", "b"), finished=finished)
    said = r"made with another sampling \(temperature 0.0, now 0.5; n 1, now 2\)"
    with pytest.raises(UsageError, match=said):
        run(items("a", "b"), finished=finished, sampling={"temperature": 0.5, "n": 2})
    assert len(stage.engines) == 1


def test_a_run_of_another_model_is_refused_by_its_name_before_loading(stage: Stage) -> None:
    _, (whole,) = run(items("a"))
    with pytest.raises(UsageError, match="record 0 was made with model 'other', not 'm'") as caught:
        run(items("a"), finished={0: whole | {"model": "other"}})
    assert "--model other" in str(caught.value.hint)
    assert len(stage.options) == 1


def test_nothing_left_to_do_builds_no_engine(stage: Stage) -> None:
    _, whole = run(items("a"))
    report, records = run(items("a"), finished={0: whole[0]})
    assert (report.resumed, records, len(stage.engines)) == (1, [], 1)


def test_the_engine_gets_the_room_that_the_work_needs(stage: Stage) -> None:
    run(items("abc", "x" * 100, max_new_tokens=10, n=2))
    config = stage.engines[0].config
    assert (config.max_seq_length, config.max_batch_size) == (128, 4)
    run(items("abc", max_new_tokens=10_000))
    assert stage.engines[1].config.max_seq_length == LONGEST
    run(items("abc"), engine=EngineConfig(max_seq_length=77, max_batch_size=1))
    config = stage.engines[2].config
    assert (config.max_seq_length, config.max_batch_size) == (77, 1)


def test_extended_rope_gives_room_beyond_the_short_models(stage: Stage) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    stage.config |= {"rope_parameters": yarn}
    _, (record,) = run(items("a" * 1000, max_new_tokens=20))
    assert "error" not in record
    assert stage.engines[0].config.max_seq_length == 1024


def test_prompts_around_the_longest_length(stage: Stage) -> None:
    asked = items("a" * 9, "a" * 10, "a" * 11, "ok")
    report, records = run(asked, engine=EngineConfig(max_seq_length=10))
    assert ["error" in r for r in records] == [False, True, True, False]
    assert records[2]["prompt_token_ids"] == [97] * 11
    assert report.tally.failed == 2


@pytest.mark.parametrize(
    ("word", "kind"), [("crash", RuntimeError), ("interrupt", KeyboardInterrupt)]
)
def test_what_was_finished_before_the_end_is_kept(
    stage: Stage, word: str, kind: type[BaseException]
) -> None:
    report, records = run(items("a", word, "c"))
    assert [r["id"] for r in records] == [0, 2]
    assert isinstance(report.tally.ended_by, kind)
    assert stage.engines[0].closed
    assert report.as_dict(records)["interrupted"] == (kind is KeyboardInterrupt)


def test_a_failed_write_ends_the_work(stage: Stage) -> None:
    config = GenerateConfig(
        model=ModelOptions(model="m"), engine=EngineConfig(), items=items("a", "b first", "c")
    )
    tried = []

    def emit(record: Record) -> None:
        tried.append(record["id"])
        raise WriteFailed("full")

    report = run_generate(config, emit)
    assert isinstance(report.tally.ended_by, WriteFailed)
    assert tried == [0]
    assert report.tally.done == 0


def test_errors_before_the_start_are_raised(stage: Stage) -> None:
    stage.load_error = NotEnoughMemory("too big")
    with pytest.raises(NotEnoughMemory):
        run(items("a"))


def test_a_single_text_grows_and_ends_as_the_record_has_it(stage: Stage) -> None:
    pieces: list[str] = []
    records: list[Record] = []
    config = GenerateConfig(
        model=ModelOptions(model="m"), engine=EngineConfig(), items=items("héllo", stop=("LO",))
    )
    run_generate(config, records.append, on_text=pieces.append)
    assert "".join(pieces) == records[0]["outputs"][0]["text"] == "HÉL"
    assert len(pieces) >= 3


def test_notices_come_before_the_records(stage: Stage) -> None:
    said: list[str] = []
    config = GenerateConfig(model=ModelOptions(model="m"), engine=EngineConfig(), items=items("a"))
    run_generate(config, lambda record: said.append("record"), notice=said.append)
    assert said[0] == "device: fake"
    assert said[-2:] == ["sampling: greedy, up to 256 new tokens", "record"]


@pytest.mark.parametrize(
    ("given", "seed", "said"),
    [
        ({}, 7, "greedy, up to 256 new tokens"),
        (
            {"temperature": 1.0, "top_p": 0.95, "top_k": 20},
            0,
            "temperature 1, top-p 0.95, top-k 20, seed 0, up to 256 new tokens",
        ),
        (
            {"temperature": 0.5, "min_p": 0.05, "repetition_penalty": 1.1, "n": 3},
            7,
            "temperature 0.5, min-p 0.05, repetition penalty 1.1, seed 7, 3 samples of each "
            "prompt, up to 256 new tokens",
        ),
        (
            {"stop": ["a", "b c"], "ignore_eos": True, "logprobs": True, "max_new_tokens": 1},
            0,
            "greedy, stop 'a', stop 'b c', EOS ignored, logprobs, up to 1 new token",
        ),
        ({"top_k": 20}, 0, "greedy, top-k 20, up to 256 new tokens"),
    ],
)
def test_the_notice_on_sampling_says_what_is_in_effect(
    stage: Stage, given: dict[str, Any], seed: int, said: str
) -> None:
    report, _ = run(items("a"), engine=EngineConfig(seed=seed), sampling=given)
    assert report.notices[-1] == f"sampling: {said}"


def of_room(report: GenerateReport) -> list[str]:
    return [line for line in report.notices if "asked" in line or "early" in line]


SHORT = EngineConfig(max_seq_length=10)


def test_what_was_asked_for_beyond_the_room_is_said_once(stage: Stage) -> None:
    for asked, given in (
        (items("abcdef"), {"max_new_tokens": 100}),
        (items("abcdef", max_new_tokens=100), {}),
        (items("abcdef", max_new_tokens=100), {"max_new_tokens": 2}),
    ):
        report, (record,) = run(asked, engine=SHORT, sampling=given)
        said = "--max-seq-length 10 leaves room for 4 of the 100 new tokens asked (request 0)"
        assert of_room(report) == [said]
        assert record["outputs"][0]["text"] == "ABCD"
    report, _ = run(items("abcd", "abcdef", "a" * 10, "ab"), engine=SHORT,
                    sampling={"max_new_tokens": 7})  # fmt: skip
    assert of_room(report) == [
        "--max-seq-length 10 leaves 2 requests less room than the new tokens asked, "
        "request 1 the least: 4 of 7"
    ]
    report, _ = run(items("abcdef"), engine=SHORT, sampling={"max_new_tokens": 4})
    assert of_room(report) == []


def test_the_models_own_length_is_named_where_no_option_was_given(stage: Stage) -> None:
    report, _ = run(items("a" * 500, max_new_tokens=100))
    assert of_room(report) == [
        "the longest sequence of m (512 tokens) leaves room for 12 of the 100 new tokens asked "
        "(request 0)"
    ]


def test_what_nobody_asked_for_is_said_only_where_it_ended_a_request(stage: Stage) -> None:
    report, _ = run(items("abc"), engine=SHORT)
    assert of_room(report) == []
    said: list[str] = []
    config = GenerateConfig(
        model=ModelOptions(model="m"), engine=SHORT, items=(*items("abcdef"), *items("abc"))
    )
    report = run_generate(config, lambda record: said.append("record"), notice=said.append)
    line = "--max-seq-length 10 ended request 0 early: 4 of up to 256 new tokens"
    assert of_room(report) == [line]
    assert said[-2:] == ["record", line]
    report, _ = run(items("abcdef", "abcdefg", "a"), engine=SHORT)
    assert of_room(report) == [
        "--max-seq-length 10 ended 2 requests early, request 1 the earliest: "
        "3 of up to 256 new tokens"
    ]
    report, _ = run(items("abcdef"), engine=SHORT, sampling={"max_new_tokens": None})
    assert of_room(report) == [line], "None is not asked for"
