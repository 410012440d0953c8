"""What a caller of the Python API gets wrong is told in one line, before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flexinfer.engine.engine import Engine
from flexinfer.engine.requests.outputs import Request
from flexinfer.errors import UsageError


@pytest.mark.parametrize("ids", ["abc", ["a"], [1.5], None, 7, ["1", 2]])
def test_a_prompt_that_is_no_token_ids_is_refused(ids: Any) -> None:
    with pytest.raises(
        UsageError, match=r"^prompt_token_ids is no sequence of token ids"
    ) as caught:
        Request(prompt_token_ids=ids)
    assert "tokenizer" in str(caught.value.hint)


@pytest.mark.parametrize("ids", [[1, 2], (1, 2), torch.tensor([1, 2]), range(1, 3)])
def test_any_sequence_of_token_ids_is_kept_as_a_tuple(ids: Any) -> None:
    kept = Request(prompt_token_ids=ids).prompt_token_ids
    assert (kept, {type(token) for token in kept}) == ((1, 2), {int})


@pytest.mark.parametrize("requests", [["text"], [Request(prompt_token_ids=()), (1, 2)], "text"])
def test_what_is_no_request_is_refused(open_engine: Callable[..., Engine], requests: Any) -> None:
    engine = open_engine("qwen3")
    said = r"^requests\[\d\] is no Request \(it is a (str|tuple)\)$"
    for call in (engine.generate, lambda given: next(engine.stream(given))):
        with pytest.raises(UsageError, match=said) as caught:
            call(requests)
        assert "Request(prompt_token_ids=" in str(caught.value.hint)


def test_requests_may_come_from_a_generator(open_engine: Callable[..., Engine]) -> None:
    given: Any = (Request(prompt_token_ids=ids) for ids in ((), ()))
    assert len(open_engine("qwen3").generate(given)) == 2


def test_a_name_alone_is_no_model_options() -> None:
    wrong: Any = "tiny-gemma4"
    with pytest.raises(
        UsageError, match=r"^from_pretrained takes ModelOptions, not a str$"
    ) as caught:
        Engine.from_pretrained(wrong)
    assert "ModelOptions(model='tiny-gemma4')" in str(caught.value.hint)
