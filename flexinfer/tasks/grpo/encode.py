"""How a prompt becomes token ids: as `generate` does it, chats through the template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flexinfer.config import ModelOptions
from flexinfer.engine.requests.chat import encode_chat, encode_raw
from flexinfer.tasks.grpo.problems.problem_set import Encode, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from flexinfer.weights.load import LoadedModel


def encoder(loaded: LoadedModel, options: ModelOptions) -> Encode:
    """Return how the prompts of a loaded model are encoded."""
    module: Any = loaded.module
    return encoder_of(loaded.tokenizer, str(module.config.model_type), options)


def encoder_of(tokenizer: PreTrainedTokenizerFast, family: str, options: ModelOptions) -> Encode:
    """Return how a tokenizer encodes the prompts of a model of `family`."""

    def encode(prompt: Prompt) -> Sequence[int]:
        if isinstance(prompt, str):
            return encode_raw(tokenizer, prompt)
        return encode_chat(tokenizer, prompt, options.chat_template, family)

    return encode
