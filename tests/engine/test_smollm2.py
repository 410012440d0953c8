"""Real weights: SmolLM2-135M-Instruct answers as transformers' own generate, token by token."""

from __future__ import annotations

import pytest
import torch

from flexinfer import Engine, EngineConfig, Request, SamplingParams
from flexinfer.engine.requests.chat import encode_chat
from flexinfer.weights.load import LoadedModel
from tests.support.smollm2 import needs_smollm2, smollm2

NEW_TOKENS = 64
QUESTIONS = (
    "What is the capital of France?",
    "Name three primary colours.",
    "Write one sentence about the sea.",
    "How many legs does a spider have?",
    "Translate 'good morning' to Spanish.",
    "What is 7 times 6?",
    "Why is the sky blue? Answer for a child of five who has just begun to ask such things.",
    "Give me a short recipe for tea.",
)

pytestmark = needs_smollm2


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return smollm2()


@pytest.fixture(scope="module")
def prompts(loaded: LoadedModel) -> list[tuple[int, ...]]:
    messages = ([{"role": "user", "content": question}] for question in QUESTIONS)
    return [encode_chat(loaded.tokenizer, turn, "auto", "llama") for turn in messages]


def expected(loaded: LoadedModel, prompt: tuple[int, ...]) -> list[int]:
    """Return what transformers generates, greedily and alone."""
    ids = torch.tensor([prompt])
    out = loaded.module.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        eos_token_id=sorted(loaded.eos_ids),
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()


def test_eight_chats_are_what_transformers_generates(
    loaded: LoadedModel, prompts: list[tuple[int, ...]]
) -> None:
    sampling = SamplingParams(max_new_tokens=NEW_TOKENS)
    with Engine(loaded, EngineConfig(max_batch_size=5, max_seq_length=160, page_size=16)) as engine:
        outputs = engine.generate(
            [Request(prompt_token_ids=prompt, sampling=sampling) for prompt in prompts]
        )
    found = [list(output.outputs[0].token_ids) for output in outputs]
    assert found == [expected(loaded, prompt) for prompt in prompts]
    assert len({tuple(ids) for ids in found}) == len(prompts)
    assert "Paris" in outputs[0].outputs[0].text
