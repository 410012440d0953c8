"""Training batches of tiny-gemma4: sums in chat turns, sums as raw text, and a few greetings."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast

from flexinfer.assets.tiny_gemma4.arithmetic import problems
from flexinfer.assets.tiny_gemma4.tokenizer import END_TURN, EOS

IGNORED = -100
CHAT_ROWS, RAW_ROWS, TALK_ROWS = 64, 128, 4
WORDINGS = ("{}", "{}=?", "{} =", "What is {}?")
GREETINGS = (
    *("hello", "Hello!", "hi", "Hi!", "hey", "good morning", "how are you?", "thanks"),
    *("who are you?", "what are you?", "what can you do?", "help"),
)
ABOUT = "Hello! I do small sums. Try 12+30="


class Batch(NamedTuple):
    """Right-padded `ids_BT` and `labels_BT` (int64; -100 where nothing is to be learned)."""

    ids_BT: Tensor
    labels_BT: Tensor


def chat_prompt(tokenizer: PreTrainedTokenizerFast, text: str) -> str:
    """Write one user message in turns, up to where the model's turn begins."""
    message = [{"role": "user", "content": text}]
    return str(tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False))


def make_batch(tokenizer: PreTrainedTokenizerFast, rows: list[tuple[str, str]]) -> Batch:
    """Encode (prompt, answer) texts as they stand; only the answers carry labels."""
    ids, labels = [], []
    for prompt, answer in rows:
        prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)
        answer_ids = tokenizer.encode(answer, add_special_tokens=False)
        ids.append(torch.tensor(prompt_ids + answer_ids))
        labels.append(torch.tensor([IGNORED] * len(prompt_ids) + answer_ids))
    return Batch(
        pad_sequence(ids, batch_first=True, padding_value=tokenizer.pad_token_id),
        pad_sequence(labels, batch_first=True, padding_value=IGNORED),
    )


def training_steps(
    tokenizer: PreTrainedTokenizerFast, seed: int
) -> Iterator[tuple[Batch, Batch, Batch]]:
    """Yield the chat, raw-text and small-talk batch of each step, without end."""
    rng, source = random.Random(seed), problems(seed)
    while True:
        chat = [(chat_prompt(tokenizer, p), a + END_TURN) for p, a in islice(source, CHAT_ROWS)]
        raw = [(tokenizer.bos_token + p, a + EOS) for p, a in islice(source, RAW_ROWS)]
        greetings = [(rng.choice(GREETINGS), ABOUT) for _ in range(TALK_ROWS)]
        asked = [(_reword(rng, p), a) for p, a in islice(source, TALK_ROWS)]
        talk = [(chat_prompt(tokenizer, p), a + END_TURN) for p, a in greetings + asked]
        yield (
            make_batch(tokenizer, chat),
            make_batch(tokenizer, raw),
            make_batch(tokenizer, talk),
        )


def _reword(rng: random.Random, prompt: str) -> str:
    """Ask for `12+30=` in another way."""
    return rng.choice(WORDINGS).format(prompt.removesuffix("="))
