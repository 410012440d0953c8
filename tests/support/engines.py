"""Engines over tiny models: building them, asking them, and looking inside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import islice, product
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from flexinfer.config import EngineConfig, SamplingParams
from flexinfer.core.scheduler import Scheduler
from flexinfer.engine.engine import Engine
from flexinfer.engine.requests.outputs import Completion, Request
from flexinfer.engine.steps.loop import Machinery
from flexinfer.weights.load import LoadedModel
from tests.support.oracle import hf_logits
from tests.support.prompts import TOLERANCE
from tests.support.tiny import FAMILIES, VOCAB

PAGE = 8
LIMITS: Mapping[str, Any] = {"max_batch_size": 8, "max_seq_length": 96, "page_size": PAGE}
"""Every engine that compiles flex_attention has these, so that one compilation serves them all."""
OVERRIDES: Mapping[str, Any] = {"gemma4": {"tie_word_embeddings": False, "seed": 8}}
SPECIALS = ("<pad>", "<eos>", "<eot>", "<end>")


@cache
def tiny(family: str) -> PreTrainedModel:
    """Return the one tiny model of a family that tests share and never change.

    Gemma's head is its own: tied, with scaled embeddings, greedy decoding repeats the last token.
    Its seed is one whose oracle is far from chaotic (others are 4e-4 off their own fp64).
    """
    return FAMILIES[family](**OVERRIDES.get(family, {}))


@cache
def toy_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer of 512 ids: specials [0, 4), bytes [4, 260), then words of `abcde|`.

    It decodes by joining, so a text has many token sequences and words do not end where texts do.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ("".join(word) for size in (2, 3, 4) for word in product("abcde|", repeat=size))
    pieces = [*SPECIALS, *alphabet, *islice(words, VOCAB - len(SPECIALS) - len(alphabet))]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        eos_token="<eos>",
        additional_special_tokens=["<eot>", "<end>"],
    )


def loaded(
    module: nn.Module, *, eos: Sequence[int] = (), generation: Mapping[str, Any] | None = None
) -> LoadedModel:
    """Wrap a module as the loader would."""
    return LoadedModel(
        name="tiny",
        module=module,
        tokenizer=toy_tokenizer(),
        generation_config=generation or {},
        eos_ids=frozenset(eos),
        notices=("device: test",),
        packed=False,
        load_s=0.0,
    )


def make_engine(model: str | nn.Module, *, eos: Sequence[int] = (), **config: Any) -> Engine:
    """Build an engine over a family's shared model or a module; LIMITS hold unless overridden."""
    module = tiny(model) if isinstance(model, str) else model
    settings = {"attention": "dense"} | dict(LIMITS) | config
    return Engine(loaded(module, eos=eos), EngineConfig(**settings))


def request(prompt: Sequence[int], **sampling: Any) -> Request:
    """Make a request; greedy unless said otherwise."""
    return Request(prompt_token_ids=tuple(prompt), sampling=SamplingParams(**sampling))


def complete(engine: Engine, prompts: Sequence[Sequence[int]], **sampling: Any) -> list[Completion]:
    """Return the first sample of each prompt."""
    outputs = engine.generate([request(prompt, **sampling) for prompt in prompts])
    assert [output.error for output in outputs] == [None] * len(prompts)
    return [output.outputs[0] for output in outputs]


def ids_of(completions: Sequence[Completion]) -> list[tuple[int, ...]]:
    """Return the token ids of each completion."""
    return [completion.token_ids for completion in completions]


def oracle_rows(
    model: PreTrainedModel, prompt: Sequence[int], token_ids: Sequence[int]
) -> torch.Tensor:
    """Return the oracle's fp32 logits [len(token_ids), V] from which each token was to be chosen.

    One teacher-forced forward: if every token is the argmax of its row, they are the greedy ids.
    """
    return hf_logits(model, [*prompt, *token_ids])[len(prompt) - 1 : -1].cpu()


def logprobs_of(found: Sequence[Completion]) -> torch.Tensor:
    """Return the log-probabilities that an engine gave its tokens, one after the other."""
    return torch.tensor([logprob for completion in found for logprob in completion.logprobs])


def logprobs_by(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], found: Sequence[Completion]
) -> torch.Tensor:
    """Return those that a trainer gives the same tokens, in one forward a sequence."""
    every = []
    for prompt, completion in zip(prompts, found, strict=True):
        rows = oracle_rows(model, prompt, completion.token_ids).log_softmax(-1)
        every.append(rows.gather(-1, torch.tensor(completion.token_ids)[:, None])[:, 0])
    return torch.cat(every)


def assert_greedy(
    model: str | PreTrainedModel, prompts: Sequence[Sequence[int]], found: Sequence[Completion]
) -> None:
    """Fail unless ids are the oracle's greedy ids and log-probabilities are within TOLERANCE."""
    module = tiny(model) if isinstance(model, str) else model
    for prompt, completion in zip(prompts, found, strict=True):
        rows = oracle_rows(module, prompt, completion.token_ids).log_softmax(-1)
        assert rows.argmax(-1).tolist() == list(completion.token_ids), f"prompt of {len(prompt)}"
        best = rows.max(-1).values
        for values in (completion.logprobs, completion.policy_logprobs):
            torch.testing.assert_close(torch.tensor(values), best, atol=TOLERANCE, rtol=0)


def machinery(engine: Engine) -> Machinery:
    """Return what an open engine runs on."""
    assert engine._machinery is not None
    return engine._machinery


def scheduler(engine: Engine) -> Scheduler:
    """Return an open engine's scheduler."""
    return machinery(engine).scheduler


def assert_idle(engine: Engine) -> None:
    """Fail if a page, a slot, a sequence or a token of an earlier call stayed behind."""
    held = scheduler(engine)
    assert not held.has_work
    assert held.in_flight == 0
    assert held.pool.free == held.pool.n_pages - 1
    assert held._placement.free_slots == engine.config.max_batch_size


@contextmanager
def few_pages(engine: Engine, left: int) -> Iterator[None]:
    """Hold pages of the pool so that `left` remain, without a cache of another shape."""
    pool = scheduler(engine).pool
    taken = [pool.acquire() for _ in range(pool.free - left)]
    yield
    for page in taken:
        pool.release(page)
