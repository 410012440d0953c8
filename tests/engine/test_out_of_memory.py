"""Memory that runs out on the way: told with figures and a cure, and nothing of it stays behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flexinfer.engine import setup
from flexinfer.engine.engine import Engine
from flexinfer.engine.steps.programs import Programs
from flexinfer.errors import NotEnoughMemory
from tests.support.engines import assert_greedy, complete, make_engine
from tests.support.prompts import prompts_of

Open = Callable[..., Engine]
WORDS = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.72 GiB of "
    "which 1.17 GiB is free. Including non-PyTorch memory, this process has 138.55 GiB memory in "
    "use.\nOf the allocated memory 137 GiB is allocated by PyTorch."
)
PROMPTS = prompts_of(5, 20)


class Failing:
    """Stands for a piece of the engine; fails once it holds a tensor, and remembers the tensor."""

    def __init__(self, error: Exception) -> None:
        self.error, self.left = error, 1
        self.held: weakref.ref[torch.Tensor] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        held = torch.zeros(8)
        self.held = weakref.ref(held)
        raise self.error


def test_an_engine_that_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Failing(torch.OutOfMemoryError(WORDS))
    monkeypatch.setattr(setup, "PagedKVCache", failing)
    with pytest.raises(NotEnoughMemory) as caught:
        make_engine("qwen3")
    assert caught.value.message == (
        "building the engine ran out of memory: CUDA out of memory. Tried to allocate 2.00 GiB. "
        "GPU 0 has a total capacity of 139.72 GiB of which 1.17 GiB is free."
    )
    assert "--kv-memory" in str(caught.value.hint)
    assert caught.value.exit_code == 4
    assert failing.held is not None
    gc.collect()
    assert failing.held() is None, "the error keeps the tensors of what failed"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(WORDS),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
    ],
)
@pytest.mark.parametrize("program", ["prefill", "decode"])
def test_a_call_that_runs_out(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch, program: str, error: Exception
) -> None:
    engine = open_engine("qwen3")
    with monkeypatch.context() as patch:
        patch.setattr(Programs, program, Failing(error))
        with pytest.raises(NotEnoughMemory, match="generating ran out of memory: ") as caught:
            complete(engine, PROMPTS, max_new_tokens=3)
    assert "--kv-memory" in str(caught.value.hint)
    assert_greedy("qwen3", PROMPTS, complete(engine, PROMPTS, max_new_tokens=3))


def test_another_failure_stays_what_it_is(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Programs, "decode", Failing(RuntimeError("shapes do not match")))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        complete(open_engine("qwen3"), PROMPTS, max_new_tokens=3)
