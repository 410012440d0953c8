"""Requests that cannot be served become errors at their place, and the others go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flexinfer.config import EngineConfig
from flexinfer.engine.engine import Engine
from flexinfer.errors import EnvironmentUnfit, UsageError
from tests.support.engines import assert_greedy, complete, loaded, make_engine, request, tiny
from tests.support.prompts import prompts_of
from tests.support.tiny import FAMILIES, tiny_llama

Open = Callable[..., Engine]
LONGEST = 32


@pytest.mark.parametrize("family", FAMILIES)
def test_bad_requests_among_good_ones(family: str, open_engine: Open) -> None:
    engine = open_engine(family, max_seq_length=LONGEST)
    good, nearly, full, over = prompts_of(10, LONGEST - 1, LONGEST, LONGEST + 1)
    prompts = [good, [], nearly, full, [5, 512, 6], over, [4, -1], good[:3]]
    outputs = engine.generate([request(prompt, max_new_tokens=6) for prompt in prompts])
    assert [output.index for output in outputs] == list(range(len(prompts)))
    assert [output.prompt_token_ids for output in outputs] == [tuple(p) for p in prompts]
    words = {
        1: "the prompt is empty",
        3: "the prompt has 32 tokens, which leaves no room for a new one",
        4: "outside the vocabulary of 512",
        5: "the prompt has 33 tokens",
        6: "outside the vocabulary",
    }
    for index, output in enumerate(outputs):
        if index in words:
            assert words[index] in str(output.error)
            assert "\n" not in str(output.error)
            assert output.outputs == ()
        else:
            assert output.error is None
    served = [0, 2, 7]
    found = [outputs[i].outputs[0] for i in served]
    assert [len(completion.token_ids) for completion in found] == [6, 1, 6]
    assert [completion.finish_reason for completion in found] == ["length"] * 3
    assert_greedy(family, [prompts[i] for i in served], found)


def test_errors_name_the_flag(open_engine: Open) -> None:
    engine = open_engine("qwen3", max_seq_length=LONGEST)
    (output,) = engine.generate([request(prompts_of(40)[0])])
    assert f"--max-seq-length {LONGEST}" in str(output.error)


def test_refusals_stream_first_and_alone(open_engine: Open) -> None:
    engine = open_engine("qwen3", max_seq_length=LONGEST)
    requests = [request(prompts_of(5)[0], max_new_tokens=2), request([])]
    assert [output.index for output in engine.stream(requests)] == [1, 0]
    assert [output.error for output in engine.generate(requests[1:])] == ["the prompt is empty"]
    assert engine.stats.prefill_tokens == 5


def test_ids_at_the_edges_of_the_vocabulary(open_engine: Open) -> None:
    engine = open_engine("qwen3")
    prompts = [[0, 511], [511], [0]]
    outputs = engine.generate([request(prompt, max_new_tokens=3) for prompt in prompts])
    assert_greedy("qwen3", prompts, [output.outputs[0] for output in outputs])


def test_the_model_bounds_the_longest_sequence() -> None:
    model = tiny_llama(max_position_embeddings=40)
    with pytest.raises(UsageError, match=r"--max-seq-length 41: tiny knows .* 40 tokens"):
        make_engine(model, max_seq_length=41)
    with make_engine(model, max_seq_length=None) as engine:
        assert engine.max_seq_length == 40
        assert any("40 tokens each" in line for line in engine.notices)
        (output,) = engine.generate([request(prompts_of(30)[0], max_new_tokens=50)])
        assert len(output.outputs[0].token_ids) == 10
    with Engine(loaded(tiny("llama"))) as engine:
        assert engine.max_seq_length == 1024


def test_scaled_rope_knows_more_positions() -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 40}
    model = tiny_llama(max_position_embeddings=40, rope_parameters=rope | {"rope_theta": 10000.0})
    with make_engine(model, max_seq_length=160) as engine:
        assert engine.max_seq_length == 160
    with pytest.raises(UsageError, match="160 tokens"):
        make_engine(model, max_seq_length=161)


def test_a_page_larger_than_a_sequence_is_cut_and_said() -> None:
    prompts = prompts_of(20, 5)
    with make_engine("qwen3", page_size=2**20, max_seq_length=40) as engine:
        assert "KV pages: of 64 tokens, not 1048576: no sequence has more than 40" in engine.notices
        assert any(" pages of 64 tokens" in line for line in engine.notices)
        assert_greedy("qwen3", prompts, complete(engine, prompts, max_new_tokens=6))


@pytest.mark.parametrize("flag", ["--prefill-kernel-options", "--decode-kernel-options"])
def test_kernel_options_are_checked_and_those_without_effect_said(flag: str) -> None:
    name = flag.removeprefix("--").replace("-", "_")
    with pytest.raises(UsageError, match=f"{flag}: 'num_warp'") as caught:
        make_engine("qwen3", attention="auto", **{name: {"num_warp": 4}})
    assert caught.value.hint == "did you mean num_warps?"
    with make_engine("qwen3", attention="auto", **{name: {"num_warps": 4}}) as engine:
        said = engine.notices
    assert f"{flag}: num_warps without effect on a CPU" in said
    assert any("(kernel options are flex_attention's)" in line for line in said)
    assert any("compiled before the first" in line for line in said)


def test_where_nothing_is_compiled_no_wait_is_announced() -> None:
    with make_engine("qwen3", attention="dense") as engine:
        assert not any("compiled before" in line for line in engine.notices)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"cuda_graphs": True}, "--cuda-graphs"),
        ({"fa4_prefill": True}, "--fa4-prefill"),
        ({"attention": "triton"}, "--attention triton"),
    ],
)
def test_what_cannot_be_had_is_refused(settings: dict[str, object], word: str) -> None:
    with pytest.raises(EnvironmentUnfit, match=word):
        Engine(loaded(tiny("qwen3")), EngineConfig(**settings))


def test_flex_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EnvironmentUnfit, match="C\\+\\+ compiler"):
        make_engine("qwen3", attention="flex")
