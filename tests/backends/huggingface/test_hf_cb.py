"""Continuous batching as a rollout: ids of all back ends, log-probabilities, no lost request."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel
from transformers.generation.continuous_batching import ContinuousBatchingManager

from flexinfer.backends.base.options import RolloutOptions
from flexinfer.backends.huggingface import cb_session
from flexinfer.backends.huggingface.cb_session import Served
from flexinfer.errors import EnvironmentUnfit, UsageError
from tests.backends.huggingface.test_hf import assert_own
from tests.support.engines import request, tiny
from tests.support.rollouts import (
    PROMPTS,
    fresh,
    live,
    requests,
    samples,
    shake,
    with_lora,
)

pytestmark = pytest.mark.usefixtures("quick_collection")
SERVED = ("qwen3", "llama")
"""Families whose layers are all alike; of Gemma-4 see below."""
KEPT = RolloutOptions(persistent_cb=True)


def ids_of(backend: Any, asked: Any) -> list[list[tuple[int, ...]]]:
    return [[c.token_ids for c in group] for group in samples(backend, asked)]


@pytest.mark.parametrize("family", SERVED)
def test_greedy_ids_of_three_back_ends_are_the_same(family: str) -> None:
    ids = [ids_of(live(name, tiny(family)), requests(10)) for name in ("flex", "hf", "hf-cb")]
    assert ids[0] == ids[1] == ids[2]


@pytest.mark.parametrize("adapted", [False, True], ids=["base", "lora"])
@pytest.mark.parametrize("family", SERVED)
def test_log_probabilities_are_the_modules_own(family: str, adapted: bool) -> None:
    module = fresh(family)
    model = with_lora(module) if adapted else module
    backend = live("hf-cb", module, model)
    for params in (
        {"temperature": 0.7, "n": 2},
        {"temperature": 1.4, "top_k": 30, "top_p": 0.8, "min_p": 0.05},
    ):
        found = samples(backend, requests(8, seed=3, **params))
        for prompt, completions in zip(PROMPTS, found, strict=True):
            for completion in completions:
                assert len(completion.token_ids) == 8
                assert_own(model, prompt, completion, params)


def test_the_forward_for_what_truncation_kept_is_told_where_it_is_done() -> None:
    backend = live("hf-cb", tiny("qwen3"))
    for params, told in (({"temperature": 1.0}, 0), ({"top_p": 0.5}, 0), ({"min_p": 0.1}, 1)):
        backend.generate(requests(2, **{"temperature": 1.0 if "min_p" in params else 0.0} | params))
        assert sum("one more forward" in line for line in backend.notices) == told


def test_a_greedy_request_beside_sampled_ones_is_greedy() -> None:
    asked = [
        request(PROMPTS[0], max_new_tokens=6, temperature=1.0, seed=1, n=2),
        request(PROMPTS[1], max_new_tokens=5, top_p=0.5),
        request(PROMPTS[2], max_new_tokens=4, temperature=1.0, seed=1),
    ]
    found = ids_of(live("hf-cb", tiny("qwen3")), asked)
    assert found[1] == ids_of(live("hf", tiny("qwen3")), asked[1:2])[0]
    assert [[len(ids) for ids in group] for group in found] == [[6, 6], [5], [4]]
    assert found[0][0] != found[0][1]


@pytest.mark.parametrize("options", [None, KEPT], ids=["built anew", "kept"])
def test_seeds_make_a_call_reproducible(options: RolloutOptions | None) -> None:
    backend = live("hf-cb", tiny("qwen3"), options=options)
    asked = requests(6, temperature=1.0, n=2, seed=11)
    first = ids_of(backend, asked)
    torch.rand(3)
    assert ids_of(backend, asked) == first
    assert ids_of(backend, requests(6, temperature=1.0, n=2, seed=12)) != first
    assert ids_of(backend, requests(6, temperature=1.0, n=2)) != ids_of(
        backend, requests(6, temperature=1.0, n=2)
    )
    backend.close()


def test_eos_and_stop_strings_end_a_sample_as_elsewhere() -> None:
    plain = samples(live("hf", tiny("qwen3")), requests(10))
    eos, text = plain[0][0].token_ids[4], plain[2][0].text
    stop = text[len(text) // 2 :][:3]
    for name in ("hf", "hf-cb"):
        found = samples(live(name, tiny("qwen3"), eos=[eos]), requests(10, stop=(stop,)))
        flat = [group[0] for group in found]
        assert [c.stop for c in flat].count(stop) == 1
        assert flat[0].stop == eos
        assert flat[0].token_ids == plain[0][0].token_ids[:5]
        ends = [(c.token_ids, c.text, c.finish_reason, len(c.logprobs)) for c in flat]
        if name == "hf":
            expected = ends
    assert ends == expected


def test_eos_ids_stop_the_work_unless_they_are_ignored() -> None:
    asked = [request(PROMPTS[0], max_new_tokens=10)]
    (plain,) = samples(live("hf", tiny("qwen3")), asked)[0]
    backend = live("hf-cb", tiny("qwen3"), eos=[plain.token_ids[4]])
    assert ids_of(backend, asked)[0] == [plain.token_ids[:5]]
    assert backend.stats.decode_tokens == 4
    ignoring = [request(PROMPTS[0], max_new_tokens=10, ignore_eos=True)]
    assert ids_of(backend, ignoring)[0] == [plain.token_ids]


def test_a_kept_manager_serves_new_weights_and_other_work() -> None:
    """Prefixes that were computed with the old weights must not come back (vLLM, prime-rl)."""
    module = fresh("qwen3")
    model = with_lora(module)
    kept = live("hf-cb", module, model, options=KEPT, page_size=8, max_batch_size=8)
    long = tuple(range(30, 70))
    asked = [request(long, max_new_tokens=6), request(long[:20], max_new_tokens=6)]
    before = ids_of(kept, asked)
    shake(model, seed=5)
    after = ids_of(kept, asked)
    assert after == ids_of(live("hf", module, model), asked)
    assert after != before
    more = [request(long * 2, max_new_tokens=9), *asked, *requests(5)]
    assert ids_of(kept, more) == ids_of(live("hf", module, model), more)
    assert not [name for name in vars(module) if "continuous" in name]
    kept.close()


def test_a_kept_manager_is_not_used_for_other_settings() -> None:
    kept, greedy = live("hf-cb", tiny("qwen3"), options=KEPT), requests(6)
    expected = ids_of(live("hf", tiny("qwen3")), greedy)
    for params in ({"temperature": 1.5, "seed": 1}, {"temperature": 0.5, "top_k": 5, "seed": 1}):
        for prompt, (found,) in zip(PROMPTS, samples(kept, requests(6, **params)), strict=True):
            assert_own(tiny("qwen3"), prompt, found, params)
        assert ids_of(kept, greedy) == expected
    kept.close()


def test_sleep_gives_a_kept_manager_up() -> None:
    kept, asked = live("hf-cb", tiny("qwen3"), options=KEPT), requests(4)
    first = ids_of(kept, asked)
    managers = [m for m in gc.get_objects() if type(m) is ContinuousBatchingManager]
    assert [m for m in managers if m.batch_processor is not None]
    del managers
    kept.sleep()
    gc.collect()
    assert not [m for m in gc.get_objects() if type(m) is ContinuousBatchingManager]
    assert ids_of(kept, asked) == first
    kept.close()


def test_a_penalty_that_transformers_would_drop_is_refused() -> None:
    asked = [*requests(4)[:1], request((5, 6), max_new_tokens=4, repetition_penalty=1.2)]
    outputs = live("hf-cb", tiny("qwen3")).generate(asked)
    assert outputs[0].error is None
    assert "repetition penalty" in str(outputs[1].error)


class Broken(Exception):
    """What a forward raises in the loop's own thread."""


def breaks_at(module: PreTrainedModel, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the module's forward fail from that call on."""
    forward, calls = type(module).forward, [0]

    def failing(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] >= call:
            raise Broken("the forward broke")
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(module), "forward", failing)


@pytest.mark.parametrize("options", [None, KEPT], ids=["built anew", "kept"])
def test_an_exception_that_transformers_swallows_is_an_error_of_each_request(
    options: RolloutOptions | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = fresh("qwen3")
    backend = live("hf-cb", module, options=options)
    with monkeypatch.context() as patch:
        breaks_at(module, 4, patch)
        asked = [request(p, max_new_tokens=k) for p, k in zip(PROMPTS, (2, 9, 9, 9), strict=True)]
        outputs = backend.generate(asked)
    assert [output.error is None for output in outputs] == [True, False, False, False]
    assert len(outputs[0].outputs[0].token_ids) == 2
    assert all("the forward broke" in str(output.error) for output in outputs[1:])
    assert all(not output.outputs for output in outputs[1:])
    assert ids_of(backend, requests(5)) == ids_of(live("hf", module), requests(5))
    backend.close()


def test_a_result_that_is_cut_short_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    read = cb_session._read

    def short(result: Any) -> Any:
        got = read(result)
        if result.request_id == "1-0":
            return got._replace(token_ids=got.token_ids[:-1], logprobs=got.logprobs[:-1])
        return got

    monkeypatch.setattr(cb_session, "_read", short)
    outputs = live("hf-cb", tiny("qwen3")).generate(requests(5))
    assert [output.error is None for output in outputs] == [True, False, True, True]
    assert "4 of 5 tokens came back" in str(outputs[1].error)


def test_a_result_that_never_comes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = "transformers.generation.continuous_batching.continuous_api.OutputRouter"
    deliver = __import__("importlib").import_module(manager.rpartition(".")[0]).OutputRouter

    original = deliver.deliver_batch

    def losing(self: Any, outputs: list[Any]) -> None:
        original(self, [output for output in outputs if output.request_id != "2-0"])
        if any(output.request_id == "2-0" for output in outputs):
            raise Broken("and the loop dies")

    monkeypatch.setattr(deliver, "deliver_batch", losing)
    asked = [request(p, max_new_tokens=k) for p, k in zip(PROMPTS, (2, 2, 4, 2), strict=True)]
    outputs = live("hf-cb", tiny("qwen3"), max_batch_size=4).generate(asked)
    assert [output.error is None for output in outputs] == [True, True, False, True]
    assert outputs[2].error == cb_session.LOST


def test_a_model_that_it_has_no_cache_for_is_told() -> None:
    with pytest.raises(EnvironmentUnfit, match="cannot run this gemma4_text") as caught:
        live("hf-cb", tiny("gemma4")).generate(requests(3))
    assert caught.value.exit_code == 3


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="--attention means nothing to hf-cb"):
        live("hf-cb", tiny("qwen3"), attention="dense")
    with pytest.raises(UsageError, match="--kv-memory means nothing to hf-cb on a CPU"):
        live("hf-cb", tiny("qwen3"), kv_memory=2**30)


def test_what_transformers_decided_is_said_once_it_ran() -> None:
    backend = live("hf-cb", tiny("qwen3"), options=KEPT)
    before = backend.notices
    for _ in range(2):
        backend.generate(requests(2))
    (said,) = [line for line in backend.notices if line not in before]
    assert said == "continuous batching ran with eager, no CUDA graphs, waiting for each step"


def test_what_would_be_faster_is_said_on_a_gpu_alone() -> None:
    slow = Served({}, 1, graphs=False, attention="paged|sdpa", ahead=False)
    fast = Served({}, 1, graphs=True, attention="kernels-community/flash-attn2", ahead=True)
    assert slow.said(on_gpu=True).endswith(
        "; with flash attention (pip install kernels) it is faster"
    )
    assert "faster" not in slow.said(on_gpu=False)
    assert fast.said(on_gpu=True) == (
        "continuous batching ran with kernels-community/flash-attn2, CUDA graphs, batching ahead"
    )
