"""Checkpoint folders that tests make: tiny weights, a byte tokenizer, a generation config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests.support.tiny import save_tiny

SPECIALS = ("<pad>", "<bos>", "<eos>", "<turn>")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "<turn>{{ m['role'] }}:{{ m['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<turn>model:{% endif %}"
)


def byte_tokenizer(
    template: str | None = TEMPLATE, add_bos: bool = True
) -> PreTrainedTokenizerFast:
    """Build a byte-level tokenizer with ids 0..3 for the specials and 4..259 for the bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate([*SPECIALS, *alphabet])}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    if add_bos:
        inner.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", vocab["<bos>"])]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        additional_special_tokens=["<turn>"],
    )
    tokenizer.chat_template = template
    return tokenizer


def save_folder(
    family: str, folder: Path, generation: dict[str, Any] | None = None, **overrides: Any
) -> Path:
    """Write a tiny checkpoint of `family` with a tokenizer, as a user would have it."""
    save_tiny(family, folder, **overrides)
    byte_tokenizer().save_pretrained(folder)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def edit_config(folder: Path, **changes: Any) -> None:
    """Change keys of config.json; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
