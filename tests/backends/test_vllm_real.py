"""What vLLM is asked against vLLM's own classes, where it is installed: no device is needed."""

from __future__ import annotations

from dataclasses import fields
from inspect import signature
from typing import Any

import pytest

from flexinfer.backends.vllm.backend import TEMPERATURES
from flexinfer.backends.vllm.checkpoint import RANKS
from tests.support.vllm import LLM_ARGUMENTS, FakeParams, flat

pytest.importorskip("vllm")


def test_llm_takes_all_arguments() -> None:
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs

    assert {field.name for field in fields(EngineArgs)} | {"model"} >= LLM_ARGUMENTS
    assert {"use_tqdm", "lora_request", "sampling_params"} <= set(
        signature(LLM.generate).parameters
    )


@pytest.mark.parametrize("temperature", [0.0, *TEMPERATURES])
@pytest.mark.parametrize("stops", [[], [1, 2]])
def test_sampling_params_are_taken_as_they_are(temperature: float, stops: list[int]) -> None:
    from vllm import SamplingParams

    given: dict[str, Any] = {
        "n": 1, "temperature": temperature, "max_tokens": 3, "seed": 2**63 - 1, "logprobs": 0,
        "flat_logprobs": True, "detokenize": False, "ignore_eos": True, "stop_token_ids": stops,
    }  # fmt: skip
    made = SamplingParams(**given)
    assert {name: getattr(made, name) for name in given} == given


@pytest.mark.parametrize("wrong", [{"temperature": 0.0, "n": 2}, {"temperature": 2.5}])
def test_the_stand_in_refuses_what_vllm_refuses(wrong: dict[str, Any]) -> None:
    from vllm import SamplingParams

    for kind in (SamplingParams, FakeParams):
        with pytest.raises(ValueError, match=r"temperature must|n must be 1"):
            kind(**wrong)


def test_flat_logprobs_are_one_entry_a_position() -> None:
    from vllm.logprobs import append_logprobs_for_next_position, create_sample_logprobs

    made: Any = create_sample_logprobs(flat_logprobs=True)
    for token, value in ((7, -0.5), (9, -0.25)):
        append_logprobs_for_next_position(made, [token], [value], [None], 1, 0)
    stand_in = flat([7, 9], [-0.5, -0.25])
    assert len(made) == len(stand_in)
    for name in ("start_indices", "end_indices", "token_ids", "logprobs"):
        assert getattr(made, name) == getattr(stand_in, name)


def test_every_rank_is_one_of_vllms() -> None:
    from typing import get_args

    from vllm.config.lora import MaxLoRARanks

    assert set(RANKS) <= set(get_args(MaxLoRARanks))
