"""Continuous batching as other releases of transformers have it, and the memory it may take."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import ContinuousBatchingConfig
from transformers.generation.continuous_batching import continuous_api, utils

from flexinfer.backends.base.options import RolloutOptions
from flexinfer.backends.choose import load_checkpoint
from flexinfer.backends.huggingface import cb_session
from flexinfer.backends.huggingface.cb_api import Work, batching_config, check_continuous_batching
from flexinfer.backends.huggingface.hf_cb import HfCbBackend
from flexinfer.config import ModelOptions
from flexinfer.engine.requests.outputs import Request
from flexinfer.errors import EnvironmentUnfit, NotEnoughMemory
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.names import check_names
from tests.support.engines import tiny
from tests.support.rollouts import live, requests, samples

pytestmark = pytest.mark.usefixtures("quick_collection")
WORK = Work(max_prompt_length=40, max_generated_length=24, num_requests=6)
Without = Callable[..., list[dict[str, Any]]]
REFUSING: dict[str, Callable[[], object]] = {
    "bench": lambda: load_checkpoint("hf-cb", ModelOptions(model="no-such-model")),
    "train-grpo": lambda: check_names(GrpoConfig(rollout="hf-cb")),
    "make_rollout": lambda: live("hf-cb", tiny("qwen3")),
}
"""Who comes to it first; the two commands before anything is loaded."""


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Without:
    """Return what takes settings from transformers' class; it returns the calls that follow."""

    def take(*gone: str) -> list[dict[str, Any]]:
        had, build, calls = ContinuousBatchingConfig.__dataclass_fields__, [], []
        build.append(ContinuousBatchingConfig.__init__)

        def older(self: Any, **given: Any) -> None:
            if unknown := given.keys() & set(gone):
                raise TypeError(f"__init__() got an unexpected keyword argument {min(unknown)!r}")
            calls.append(given)
            build[0](self, **given)

        left = {name: field for name, field in had.items() if name not in gone}
        monkeypatch.setattr(ContinuousBatchingConfig, "__dataclass_fields__", left)
        monkeypatch.setattr(ContinuousBatchingConfig, "__init__", older)
        return calls

    return take


def ids_of(name: str, asked: list[Request], **given: Any) -> list[tuple[int, ...]]:
    return [group[0].token_ids for group in samples(live(name, tiny("qwen3"), **given), asked)]


def test_a_page_goes_by_its_name_before_5_18(without: Without) -> None:
    """transformers 5.17 takes `block_size`, and has no `auto_switch_to_flash`."""
    calls = without("page_size", "auto_switch_to_flash")
    found = ids_of("hf-cb", requests(6), page_size=8)
    assert found == ids_of("hf", requests(6))
    assert {call["block_size"] for call in calls if "num_blocks" in call} == {8}


def test_a_page_goes_by_its_new_name_where_the_class_has_both() -> None:
    names = ContinuousBatchingConfig.__dataclass_fields__
    name = "page_size" if "page_size" in names else "block_size"
    config = batching_config({"page_size": 32, "auto_switch_to_flash": False})
    assert getattr(config, name) == 32
    assert name == "block_size" or config.block_size is None
    assert getattr(config, "auto_switch_to_flash", False) is False


@pytest.mark.parametrize("asked_by", REFUSING)
def test_a_release_without_what_is_needed_is_exit_3_by_name(
    without: Without, asked_by: str
) -> None:
    without("max_requests_per_batch")
    message = "transformers [0-9.]+ has no max_requests_per_batch"
    with pytest.raises(EnvironmentUnfit, match=message) as caught:
        REFUSING[asked_by]()
    assert caught.value.exit_code == 3
    check_names(GrpoConfig(rollout="hf"))


@pytest.mark.parametrize(
    ("owner", "name"), [(utils, "WorkloadHints"), (continuous_api.OutputRouter, "fail_and_deliver")]
)
def test_so_is_one_before_5_17(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without hints of the work, or where the loop ends without a word to its requests."""
    check_continuous_batching()
    monkeypatch.delattr(owner, name)
    with pytest.raises(EnvironmentUnfit, match=f"transformers [0-9.]+ has no .*{name}$"):
        check_continuous_batching()


@pytest.mark.parametrize("options", [{}, {"persistent_cb": True}], ids=["built anew", "kept"])
def test_the_attention_asked_for_is_kept_where_flash_attention_is(
    options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not, here: had transformers switched to it, the rollout would end."""
    monkeypatch.setattr(continuous_api, "is_flash_attn_3_available", lambda **_: True)
    backend = live("hf-cb", tiny("qwen3"), options=RolloutOptions(attn_impl="sdpa", **options))
    own = ids_of("hf", requests(5), options=RolloutOptions(attn_impl="sdpa"))
    for _ in range(2):
        assert [group[0].token_ids for group in samples(backend, requests(5))] == own
    backend.close()


def test_between_calls_no_cache_is_left_to_the_trainer() -> None:
    backend = live("hf-cb", tiny("qwen3"))
    samples(backend, requests(5))
    assert not [x for x in gc.get_objects() if type(x).__name__ == "PagedAttentionCache"]
    backend.close()


def batching(device: str, **given: Any) -> ContinuousBatchingConfig:
    """Return what a back end asks transformers for on a device."""
    backend = live("hf-cb", tiny("qwen3"), **given)
    assert isinstance(backend, HfCbBackend)
    module: Any = SimpleNamespace(device=torch.device(device))
    return backend._batching(module, WORK, seed=1)


def test_a_kept_cache_leaves_a_trainer_the_memory_that_the_work_does_not_need() -> None:
    """transformers would take 0.8 to 0.9 of what is free."""
    kept = RolloutOptions(persistent_cb=True)
    assert batching("cuda").num_blocks is None
    for device in ("cpu", "cuda"):
        config = batching(device, options=kept, page_size=16)
        assert WORK.num_requests * 4 <= config.num_blocks <= WORK.num_requests * 6
        assert config.max_batch_tokens == WORK.num_requests * 41
    less = batching("cuda", options=kept, prefill_tokens=100)
    assert less.max_batch_tokens == 100


def test_a_budget_decides_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**30, 2**34))
    backend = live("hf-cb", tiny("qwen3"), options=RolloutOptions(persistent_cb=True))
    assert isinstance(backend, HfCbBackend)
    backend.config = replace(backend.config, kv_memory=2**28)
    module: Any = SimpleNamespace(device=torch.device("cuda"))
    config = backend._batching(module, WORK, seed=1)
    assert (config.num_blocks, config.max_memory_percent) == (None, 0.25)


@pytest.mark.parametrize("share", [1e-3, 1e-12], ids=["some", "none"])
@pytest.mark.parametrize("shrinks", [False, True])
def test_where_memory_is_short_fewer_blocks_do(
    share: float, shrinks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where it does not hold one, that is told."""
    build, asked = HfCbBackend._session, requests(5)

    def short(*args: Any) -> Any:
        session = build(*args)
        config = replace(session.batching, num_blocks=2**40, max_memory_percent=share)
        return replace(session, batching=config, shrinks=shrinks)

    expected = ids_of("hf", asked)
    monkeypatch.setattr(HfCbBackend, "_session", short)
    if shrinks and share > 1e-6:
        assert ids_of("hf-cb", asked) == expected
        return
    with pytest.raises(NotEnoughMemory, match="continuous batching: ") as caught:
        live("hf-cb", tiny("qwen3")).generate(asked)
    assert caught.value.exit_code == 4
    assert cb_session.NO_ROOM in str(caught.value) or not shrinks
