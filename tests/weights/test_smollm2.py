"""A real model: SmolLM2-135M-Instruct from its GGUF file answers in sense."""

from __future__ import annotations

import pytest
import torch

from flexinfer.engine.requests.chat import encode_chat
from flexinfer.weights.load import LoadedModel
from tests.support.smollm2 import needs_smollm2, smollm2

pytestmark = needs_smollm2


@pytest.fixture
def loaded() -> LoadedModel:
    return smollm2()


def test_it_has_the_shape_and_the_end_id_that_are_published(loaded: LoadedModel) -> None:
    assert sum(parameter.numel() for parameter in loaded.module.parameters()) == 134_515_008
    assert loaded.eos_ids == {2}
    assert loaded.module.dtype is torch.float32


def test_it_knows_the_capital_of_france(loaded: LoadedModel) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = encode_chat(loaded.tokenizer, question, "auto", "llama")
    out = loaded.module.generate(
        input_ids=torch.tensor([prompt]), max_new_tokens=12, do_sample=False
    )
    text = loaded.tokenizer.decode(out[0, len(prompt) :], skip_special_tokens=True)
    assert text.strip() == "The capital of France is Paris."
