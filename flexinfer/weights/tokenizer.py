"""Tokenizers: a checkpoint's own, or the embedded byte tokenizer for dummy weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flexinfer.errors import UsageError
from flexinfer.weights import names

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


def embedded() -> PreTrainedTokenizerFast:
    """Return the byte tokenizer of the embedded model."""
    return from_folder(names.tiny_folder())


def from_folder(folder: Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a checkpoint folder; raises UsageError where it has none."""
    if not any((folder / name).is_file() for name in _FILES):
        raise UsageError(
            f"{folder} holds no tokenizer.json",
            hint="save the tokenizer beside the weights: tokenizer.save_pretrained(folder)",
        )
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(folder)
    except Exception as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"{folder}: the tokenizer cannot be read: {line}") from error
    if not tokenizer.is_fast:
        raise UsageError(f"{folder}: the tokenizer has no fast form (tokenizer.json)")
    return tokenizer
