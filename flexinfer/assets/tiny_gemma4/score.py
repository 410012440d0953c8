"""How many sums a model gets right: greedy, and within several samples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from flexinfer.assets.tiny_gemma4.arithmetic import Problem
from flexinfer.assets.tiny_gemma4.data import chat_prompt

ANSWER_TOKENS = 8


@torch.no_grad()
def correct(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[Problem],
    *,
    samples: int | None = None,
    raw: bool = False,
) -> list[int]:
    """Count the right answers to each problem: 0 or 1 greedy, else of `samples` at temperature 1.

    Prompts are one left-padded batch of chat turns, or of bare text where `raw` is set.
    """
    texts = [tokenizer.bos_token + p if raw else chat_prompt(tokenizer, p) for p, _ in problems]
    inputs = tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt")
    sampling = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    ids = model.generate(
        **inputs,
        max_new_tokens=ANSWER_TOKENS,
        num_return_sequences=samples or 1,
        **(sampling if samples else {"do_sample": False}),
    )
    answers = tokenizer.batch_decode(ids[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)
    rows = zip(*[iter(answers)] * (samples or 1), strict=True)
    return [row.count(answer) for row, (_, answer) in zip(rows, problems, strict=True)]


def percent(flags: Sequence[bool] | Sequence[int]) -> float:
    """Return the share of non-zero entries, in percent."""
    return 100.0 * sum(map(bool, flags)) / len(flags)
