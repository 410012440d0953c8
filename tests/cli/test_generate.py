"""`flexinfer generate`: streams, formats, files, resuming and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flexinfer.errors import EnvironmentUnfit
from tests.support.fake_engine import EOS, Stage


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def write(path: Path, *lines: Any) -> str:
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(f"{text}\n" for text in texts))
    return str(path)


def test_a_prompt_is_a_user_message_and_stdout_holds_its_answer_alone(generate: Any) -> None:
    result = generate("12+30=")
    assert (result.exit_code, result.stdout) == (0, "<USER>12+30=\n")
    assert "attention: fake" in result.stderr
    assert "sampling: greedy" in result.stderr
    assert "1 of 1 requests done" in result.stderr


def test_quiet_says_nothing(generate: Any) -> None:
    assert generate("a", "--quiet").stderr == ""


def test_raw_text_and_a_system_message(generate: Any) -> None:
    assert generate("a", "--chat-template", "none").stdout == "A\n"
    assert generate("a", "--system", "s").stdout == "<SYSTEM>S<USER>A\n"


def test_several_prompts_keep_their_order(generate: Any) -> None:
    result = generate("a", "b", "c first", "--chat-template", "none")
    assert result.stdout.splitlines() == ["A", "B", "C FIRST"]


def test_jsonl_in_and_out(generate: Any, tmp_path: Path) -> None:
    source = write(
        tmp_path / "in.jsonl",
        {"prompt": "raw", "id": "x"},
        {"messages": [{"role": "user", "content": "hi"}], "n": 2, "logprobs": True},
        {"prompt_token_ids": [97, 98], "max_new_tokens": 1},
    )
    result = generate("--input", source)
    first, second, third = records(result.stdout)
    assert result.exit_code == 0
    assert (first["id"], first["outputs"][0]["text"]) == ("x", "RAW")
    assert [o["text"] for o in second["outputs"]] == ["<USER>HI"] * 2
    assert len(second["outputs"][0]["logprobs"]) == len(second["outputs"][0]["token_ids"])
    assert third["outputs"] == [
        {"text": "A", "token_ids": [65], "finish_reason": "length", "stop": None}
    ]


def test_bad_lines_keep_their_place_and_the_rest_goes_on(generate: Any, tmp_path: Path) -> None:
    good = [{"prompt": f"p{n}"} for n in range(6)]
    source = write(
        tmp_path / "in", *good, "{broken", {"prompt": ""}, {"prompt": "x" * 600}, good[0]
    )
    result = generate("--input", source, "--max-seq-length", "512")
    lines = records(result.stdout)
    assert result.exit_code == 1
    assert [line["id"] for line in lines] == list(range(10))
    assert [n for n, line in enumerate(lines) if "error" in line] == [6, 7, 8]
    assert lines[6]["error"].startswith("line 7: not JSON")
    assert result.stderr.count("error: request ") == 3


def test_text_keeps_the_line_of_a_failed_request(generate: Any) -> None:
    result = generate("a", "", "b", "--chat-template", "none")
    assert (result.exit_code, result.stdout) == (1, "A\n\nB\n")
    assert "error: request 1: the prompt is empty" in result.stderr


def test_many_failures_are_counted_not_listed(generate: Any) -> None:
    result = generate(*[""] * 25)
    assert result.stderr.count("error: request ") == 10
    assert "error: 15 more requests failed" in result.stderr


def test_stdin_is_a_source(generate: Any) -> None:
    result = generate("--input", "-", "--format", "text", stdin='{"prompt": "a"}\n')
    assert result.stdout == "A\n"


def test_json_is_one_document(generate: Any) -> None:
    result = generate("a", "", "--json", "--temperature", "0.5", "--seed", "7", "-n", "2")
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert document["schema_version"] == 1
    assert document["command"] == "generate"
    assert document["config"]["sampling"]["temperature"] == 0.5
    assert document["config"]["engine"]["max_batch_size"] == 2
    assert document["config"]["model"]["model"] == "m"
    assert {"device", "driver", "torch", "transformers", "versions", "commit"} <= set(
        document["environment"]
    )
    assert document["started_at"].startswith("20")
    assert [r["id"] for r in document["results"]] == [0, 1]
    assert "attention: fake (there is no other)" in document["notices"]
    assert (document["done"], document["failed"]) == (1, 1)


def test_stop_strings_are_repeatable(generate: Any) -> None:
    result = generate("a1b2", "--stop", "2", "--stop", "B", "--format", "jsonl")
    (sample,) = records(result.stdout)[0]["outputs"]
    assert (sample["text"], sample["stop"], sample["finish_reason"]) == ("<USER>A1", "B", "stop")


def test_an_end_token_is_told_and_not_shown(generate: Any) -> None:
    (sample,) = records(generate("a", "--format", "jsonl").stdout)[0]["outputs"]
    assert (sample["token_ids"][-1], sample["stop"]) == (EOS, EOS)


@pytest.mark.parametrize("value", ["0", "-1"])
def test_top_k_can_be_switched_off(generate: Any, stage: Stage, value: str) -> None:
    stage.generation_config = {"do_sample": True, "top_k": 1, "temperature": 0.1}
    result = generate("a", "--temperature", "1", "--top-k", value, "--json")
    sampling = json.loads(result.stdout)["config"]["sampling"]
    assert (sampling["top_k"], sampling["temperature"]) == (0, 1.0)
    unset = json.loads(generate("a", "--json").stdout)["config"]["sampling"]
    assert (unset["top_k"], unset["temperature"]) == (1, 0.1)


def test_an_interruption_keeps_finished_results(generate: Any, tmp_path: Path) -> None:
    source = write(tmp_path / "in", {"prompt": "a"}, {"prompt": "interrupt"}, {"prompt": "c"})
    result = generate("--input", source)
    assert result.exit_code == 130
    assert [r["id"] for r in records(result.stdout)] == [0, 2]
    assert result.stderr.endswith("interrupted\n")
    document = json.loads(generate("--input", source, "--json").stdout)
    assert document["interrupted"]
    assert len(document["results"]) == 2


def test_a_crash_keeps_finished_results_and_resuming_makes_the_rest(
    generate: Any, tmp_path: Path
) -> None:
    source = write(tmp_path / "in", {"prompt": "a"}, {"prompt": "crash"}, {"prompt": "c"})
    target = tmp_path / "out.jsonl"
    result = generate("--input", source, "--output", str(target))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "error: internal error: RuntimeError: the engine fell over" in result.stderr
    assert "Traceback" not in result.stderr
    before = records(target.read_text())
    assert [r["id"] for r in before] == [0, 2]
    source = write(tmp_path / "in", {"prompt": "a"}, {"prompt": "calm"}, {"prompt": "c"})
    result = generate("--input", source, "--output", str(target), "--resume")
    assert result.exit_code == 0
    assert "2 from an earlier run" in result.stderr
    after = records(target.read_text())
    assert [r["id"] for r in after] == [0, 1, 2]
    assert [after[0], after[2]] == before


def test_resuming_tells_everything_in_the_document(generate: Any, tmp_path: Path) -> None:
    target = str(tmp_path / "out.jsonl")
    generate("a", "interrupt", "c", "--output", target)
    result = generate("a", "calm", "c", "--output", target, "--resume", "--json")
    assert [r["id"] for r in json.loads(result.stdout)["results"]] == [0, 1, 2]


def test_resuming_another_run_is_refused_and_changes_nothing(generate: Any, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    generate("a", "b", "--output", str(target))
    before = target.read_text()
    for words in (["z", "b"], ["a"], ["a", "b", "--temperature", "1"]):
        result = generate(*words, "--output", str(target), "--resume")
        assert result.exit_code == 2
        assert "error: --resume: " in result.stderr
        assert "hint: resume with the same input" in result.stderr
        assert target.read_text() == before


def test_a_run_that_cannot_start_leaves_the_old_results(
    generate: Any, stage: Stage, tmp_path: Path
) -> None:
    target = tmp_path / "out.jsonl"
    generate("a", "--output", str(target))
    before = target.read_text()
    stage.load_error = MemoryError("no room")
    assert generate("b", "--output", str(target)).exit_code == 4
    assert target.read_text() == before


@pytest.mark.parametrize(
    "words",
    [
        ["--resume", "a"],
        ["--resume", "a", "--output", "x", "--format", "text"],
        ["--format", "xml", "a"],
        ["a", "--input", "x"],
        ["--input", "missing.jsonl"],
        ["a", "--system", "s", "--chat-template", "none"],
        ["a", "--max-batch-size", "1,2"],
    ],
)
def test_what_does_not_go_together(generate: Any, stage: Stage, words: list[str]) -> None:
    result = generate(*words)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert not stage.options


def test_the_input_is_never_overwritten(generate: Any, tmp_path: Path) -> None:
    source = write(tmp_path / "in", {"prompt": "a"})
    result = generate("--input", source, "--output", str(tmp_path / "." / "in"))
    assert result.exit_code == 2
    assert (tmp_path / "in").read_text() == '{"prompt": "a"}\n'


def test_no_model_given_is_said(command: Any, stage: Stage, monkeypatch: Any) -> None:
    monkeypatch.setattr("flexinfer.weights.names.default_model", lambda: ("tiny", "tiny: no GPU"))
    result = command("generate", "a")
    assert result.stderr.splitlines()[0] == "tiny: no GPU"
    assert stage.options[0].model == "tiny"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["\udcff"], "PROMPT"),
        (["a", "--stop", "\udcff"], "--stop"),
        (["a", "--system", "\udcff"], "--system"),
    ],
)
def test_bytes_that_are_no_text_are_wrong_usage(
    generate: Any, stage: Stage, words: list[str], named: str
) -> None:
    result = generate(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[0] == f"error: {named} is not valid Unicode text"
    assert not stage.options


def test_a_model_of_an_odd_name_loses_no_result(command: Any, stage: Stage) -> None:
    result = command("generate", "a", "--model", "m\udcff", "--json")
    assert json.loads(result.stdout)["results"][0]["model"] == "m\udcff"


@pytest.mark.parametrize("form", ["text", "jsonl"])
def test_a_failed_single_prompt_leaves_stdout_empty_in_text(
    generate: Any, tmp_path: Path, form: str
) -> None:
    result = generate("", "--format", form)
    assert (result.exit_code, result.stdout != "") == (1, form == "jsonl")
    assert result.stderr.startswith("error: request 0: the prompt is empty\n")
    source = write(tmp_path / "in", {"prompt": "x" * 600})
    late = generate("--input", source, "--format", form)
    assert (late.exit_code, late.stdout != "") == (1, form == "jsonl")


def test_no_model_is_loaded_for_requests_that_all_fail(
    generate: Any, stage: Stage, tmp_path: Path
) -> None:
    source = write(
        tmp_path / "in",
        "{broken",
        {"prompt": "", "id": "x"},
        {"prompt": "a", "key": 1},
        {"prompt": "a", "stop": "", "id": 5},
        {"messages": [{"role": "user", "content": 1}]},
    )
    result = generate("--input", source)
    assert (result.exit_code, stage.options) == (1, [])
    assert [line["id"] for line in records(result.stdout)] == [None, "x", None, 5, None]
    assert "no model is loaded" in result.stderr
    assert "0 of 5 requests done, 5 failed\n" in result.stderr
    document = json.loads(generate("--input", source, "--json").stdout)
    assert (document["failed"], len(document["results"])) == (5, 5)
    assert generate("--input", write(tmp_path / "none")).exit_code == 0
    assert stage.options == []


def test_what_is_wrong_with_some_lines_is_said_before_the_model_is_loaded(
    generate: Any, stage: Stage, tmp_path: Path
) -> None:
    source = write(tmp_path / "in", {"prompt": "a"}, "{broken", {"prompt": "b", "top_p": 2})
    stage.load_error = MemoryError("no room")
    lines = generate("--input", source).stderr.splitlines()
    assert lines[0].startswith("error: request 1: line 2: not JSON")
    assert lines[1].startswith("error: request 2: line 3: top_p is 2; allowed: more than 0")
    assert lines[2] == "error: out of memory: no room"
    stage.load_error = None
    result = generate("--input", source)
    assert result.stderr.count("not JSON") == 1
    assert records(result.stdout)[2]["error"].startswith("line 3: top_p is 2; allowed:")


def test_a_prompt_that_is_too_long_names_its_line(generate: Any, tmp_path: Path) -> None:
    source = write(tmp_path / "in", {"prompt": "a", "id": "x"}, {"prompt": "x" * 600, "id": "y"})
    result = generate("--input", source)
    assert records(result.stdout)[1]["error"] == "line 2: the prompt has 600 tokens"
    assert "error: request 'y': line 2: the prompt has 600 tokens" in result.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--output", "/missing/folder/out"], 1),
        (["--top-k", "-5"], 2),
        (["--stop", ""], 2),
        (["--max-batch-size", "x"], 2),
    ],
)
def test_what_needs_no_model_is_refused_before_one_is_chosen(
    command: Any, stage: Stage, monkeypatch: Any, words: list[str], code: int
) -> None:
    monkeypatch.setattr("flexinfer.weights.names.default_model", lambda: 1 / 0)
    result = command("generate", "a", *words)
    assert result.exit_code == code
    assert len(result.stderr.splitlines()) <= 2


def test_a_run_that_cannot_start_makes_no_file(generate: Any, stage: Stage, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    source = write(tmp_path / "in", "{broken", {"prompt": "a"})
    stage.load_error = EnvironmentUnfit("no such model")
    for words in ([], ["--resume"]):
        assert generate("--input", source, "--output", str(target), *words).exit_code == 3
        assert not target.exists()
    stage.load_error = None
    assert generate("--input", source, "--output", str(target)).exit_code == 1
    before = target.read_text()
    stage.load_error = EnvironmentUnfit("no such model")
    for words in ([], ["--resume"]):
        assert generate("--input", source, "--output", str(target), *words).exit_code == 3
        assert target.read_text() == before


def test_lines_without_an_id_that_can_be_read_are_resumed(generate: Any, tmp_path: Path) -> None:
    broken = ["{", {"id": "a", "prompt": "a"}, "[", {"id": "b", "prompt": "crash"}]
    source, target = tmp_path / "in", tmp_path / "out.jsonl"
    write(source, *broken)
    generate("--input", str(source), "--output", str(target))
    assert [r["id"] for r in records(target.read_text())] == [None, "a", None]
    write(source, *broken[:2], {"id": "c", "prompt": "c"}, {"id": "b", "prompt": "b"})
    result = generate("--input", str(source), "--output", str(target), "--resume")
    assert result.exit_code == 1
    assert "2 of 4 requests done, 1 failed, 1 from an earlier run" in result.stderr
    assert [r["id"] for r in records(target.read_text())] == [None, "a", "c", "b"]


def test_a_line_that_broke_since_is_not_written_twice(generate: Any, tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out.jsonl"
    write(source, {"id": "a", "prompt": "a"})
    generate("--input", str(source), "--output", str(target))
    before = target.read_text()
    for line in ({"id": "a", "prompt": ""}, {"id": "a", "prompt": "a", "n": 0}):
        write(source, line)
        result = generate("--input", str(source), "--output", str(target), "--resume")
        assert result.exit_code == 2
        assert "record 'a' was made with another prompt" in result.stderr
        assert target.read_text() == before


def test_the_end_line_tells_generating_from_loading(
    generate: Any, stage: Stage, monkeypatch: Any
) -> None:
    clock = iter(range(0, 1000, 7))
    monkeypatch.setattr("flexinfer.tasks.generate.run.perf_counter", lambda: next(clock))
    said = generate("ab", "--chat-template", "none").stderr.splitlines()[-1]
    assert said == (
        "1 of 1 requests done; 3 new tokens in 7.0 s (0.4 a second), beside 7.0 s of loading"
    )
    stage.compile_s = 4
    document = json.loads(generate("ab", "--json").stdout)
    names = ("wall_s", "load_s", "compile_s", "generate_s")
    assert [document[name] for name in names] == [14, 7, 4, 3]


@pytest.mark.parametrize("words", [[], ["--resume"]])
@pytest.mark.parametrize(("ends", "code"), [("interrupt", 130), ("crash", 1)])
def test_a_run_that_ends_before_its_first_record_touches_no_file(
    generate: Any, tmp_path: Path, words: list[str], ends: str, code: int
) -> None:
    source, target = tmp_path / "in", tmp_path / "out.jsonl"
    write(source, {"prompt": ends, "id": "x"}, {"prompt": "a", "id": "a"})
    write(tmp_path / "only", {"prompt": ends, "id": "x"})
    result = generate("--input", str(tmp_path / "only"), "--output", str(target), *words)
    assert (result.exit_code, target.exists()) == (code, False)
    generate("--input", str(source), "--output", str(target))
    before = target.read_text()
    assert [r["id"] for r in records(before)] == ["a"]
    source = source if words else tmp_path / "only"
    assert generate("--input", str(source), "--output", str(target), *words).exit_code == code
    assert target.read_text() == before


def test_ids_that_repeat_are_told_at_once_and_refused_when_resuming(
    generate: Any, stage: Stage, tmp_path: Path
) -> None:
    same = [{"prompt": "a", "id": "x"}, {"prompt": "b"}, {"prompt": "c", "id": "x"}]
    source, target = write(tmp_path / "in", *same), str(tmp_path / "out")
    words = "id 'x' stands on lines 1 and 3 of the input"
    apart = "so it does not tell results apart"
    first = generate("--input", source, "--output", target)
    assert first.exit_code == 0
    assert f"warning: {words}, {apart}, and --resume will not be possible\n" in first.stderr
    for more in ([], ["--json"], ["--format", "text"]):
        plain = generate("--input", source, *more)
        assert (plain.exit_code, plain.stderr.count(apart)) == (0, 1)
        assert plain.stderr.startswith(f"warning: {words}, {apart}\n")
        assert "--resume" not in plain.stderr
    again = generate("--input", source, "--output", target, "--resume")
    assert (again.exit_code, len(stage.options)) == (2, 4)
    assert again.stderr.startswith(f"error: --resume: {words}\nhint: give each ")
    write(tmp_path / "in", {"prompt": "a", "id": 1}, {"prompt": "b"})
    again = generate("--input", source, "--output", target, "--resume")
    assert "id 1 stands on lines 1 and 2" in again.stderr


def test_ids_that_repeat_are_counted(generate: Any, tmp_path: Path) -> None:
    source = write(tmp_path / "in", *[{"prompt": "a", "id": name} for name in "axyxyxz"])
    assert generate("--input", source).stderr.startswith(
        "warning: id 'x' stands on lines 2 and 4 of the input (3 lines repeat an earlier id), "
    )
    source = write(tmp_path / "in", *[{"prompt": "a", "id": name} for name in "abc"])
    assert "warning" not in generate("--input", source).stderr


def test_records_that_are_replaced_are_counted(generate: Any, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    assert "replacing" not in generate("a", "b", "", "--output", str(target)).stderr
    said = generate("a", "c", "--output", str(target)).stderr
    assert said.startswith(f"replacing 2 records of {target} (--resume keeps them)\n")
    assert "replacing" not in generate("a", "c", "--output", str(target), "--resume").stderr
    said = generate("a", "--output", str(target)).stderr
    assert said.startswith(f"replacing 2 records of {target}\n"), "it resumes no other run"
    said = generate("a", "--output", str(target), "--format", "text").stderr
    assert said.startswith(f"replacing 1 record of {target}\n"), "no text is resumed"
    target.write_text("a\n[1]\n{\n")
    assert "replacing" not in generate("a", "--output", str(target)).stderr


def test_an_interruption_says_what_resumes(generate: Any, tmp_path: Path) -> None:
    target = str(tmp_path / "out.jsonl")
    last = [generate("a", "interrupt", "--output", target).stderr.splitlines()[-1]]
    last += [generate("interrupt", "--output", target).stderr.splitlines()[-1]]
    source = write(tmp_path / "in", *[{"prompt": p, "id": 1} for p in ("a", "interrupt")])
    last += [generate("-i", source, "--output", target).stderr.splitlines()[-1]]
    resumed = "interrupted (--resume makes the rest)"
    assert last == [resumed, "interrupted", "interrupted"]


def test_logprobs_that_nothing_shows_are_told(generate: Any, tmp_path: Path) -> None:
    said = "logprobs: not shown as text (--format jsonl or --json shows them)\n"
    assert generate("a", "--logprobs").stderr.startswith(said)
    for words in (["--json"], ["--format", "jsonl"]):
        assert said not in generate("a", "--logprobs", *words).stderr
    source = write(tmp_path / "in", {"prompt": "a"}, {"prompt": "b", "logprobs": True})
    assert generate("-i", source, "--format", "text").stderr.startswith(said)


def test_lines_with_sampling_of_their_own_are_told(generate: Any, tmp_path: Path) -> None:
    source = write(tmp_path / "in", {"prompt": "a"}, {"prompt": "b", "n": 2})
    told = [generate(*words).stderr for words in (["-i", source], ["a"])]
    words = "sampling: greedy, up to 256 new tokens (1 of 2 lines overrides some)\n"
    assert [words in said for said in told] == [True, False]


def test_room_that_lacks_is_said_on_stderr_and_in_the_document(generate: Any) -> None:
    words = ["abcdef", "--chat-template", "none", "--max-seq-length", "10"]
    said = "--max-seq-length 10 leaves room for 4 of the 100 new tokens asked (request 0)"
    asked = generate(*words, "--max-new-tokens", "100", "--json")
    assert (asked.exit_code, asked.stderr.splitlines().count(said)) == (0, 1)
    assert json.loads(asked.stdout)["notices"].count(said) == 1
    late = generate(*words, "--json")
    said = "--max-seq-length 10 ended request 0 early: 4 of up to 256 new tokens"
    assert late.stderr.splitlines().count(said) == 1
    assert json.loads(late.stdout)["notices"][-1] == said
    assert generate(*words, "--quiet").stderr == ""


def test_an_input_without_requests_is_told(generate: Any, tmp_path: Path) -> None:
    result = generate("--input", write(tmp_path / "in", ""))
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("no requests: the input has none\n")
