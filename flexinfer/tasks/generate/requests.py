"""From items to requests: token ids, sampling parameters, seeds, and the room they need."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from flexinfer.config import (
    ChatTemplate,
    EngineConfig,
    ModelOptions,
    SamplingParams,
    resolve_sampling,
)
from flexinfer.engine.requests.chat import encode_chat, encode_raw, only_text
from flexinfer.engine.requests.limits import known_positions
from flexinfer.engine.requests.outputs import Request
from flexinfer.errors import OutOfRange, RequestError, UsageError
from flexinfer.tasks.generate.input import Item
from flexinfer.tasks.generate.records import Record, failed_record, origin
from flexinfer.tasks.generate.resume import check_same, made_otherwise

if TYPE_CHECKING:
    from flexinfer.weights.load import LoadedModel

_ROUND_TO = 64
"""A sequence length that is decided here is a multiple of this many tokens."""


@dataclass(frozen=True, kw_only=True)
class GenerateConfig:
    """What to generate, with which model and engine.

    `sampling` holds the options that were given; what it leaves out comes from the checkpoint.
    `finished` holds the records of an earlier run by id, which are not made again. Whatever is
    wrong with an item and can be told without a model has become its `error`.
    """

    model: ModelOptions
    engine: EngineConfig
    items: tuple[Item, ...]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    finished: Mapping[str | int, Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check what needs no model; raises UsageError for what concerns more than one item."""
        resolve_sampling(self.sampling, {})
        checked = tuple(self._checked(item) for item in self.items)
        object.__setattr__(self, "items", checked)
        for item in checked:
            if item.error is not None and item.id in self.finished:
                raise made_otherwise(item.id, "prompt")

    def _checked(self, item: Item) -> Item:
        """Return the item, its `error` set where its own values are wrong."""
        try:
            if item.sampling:
                _params(item, self.sampling, {})
            if item.messages is not None and self.model.chat_template == "none":
                only_text(item.messages)
        except RequestError as error:
            return replace(item, error=error.message)
        return item


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be done, by the item's position: requests to serve and records that are ready.

    A ready record is an error, or None for an item whose record an earlier run has written.
    """

    requests: Mapping[int, Request] = field(default_factory=dict)
    ready: Mapping[int, Record | None] = field(default_factory=dict)

    @property
    def resumed(self) -> int:
        """How many records an earlier run has written."""
        return sum(record is None for record in self.ready.values())


def make_plan(config: GenerateConfig, loaded: LoadedModel) -> Plan:
    """Encode every item; one that cannot be served becomes an error record.

    Raises UsageError where a finished record was made from another prompt, model or sampling.
    """
    requests: dict[int, Request] = {}
    ready: dict[int, Record | None] = {}
    for index, item in enumerate(config.items):
        try:
            request = _request(item, index, config, loaded)
        except RequestError as error:
            if item.id in config.finished:
                raise made_otherwise(item.id, "prompt") from error
            ready[index] = failed_record(item, error.message)
            continue
        if item.id in config.finished:
            assert item.id is not None
            check_same(config.finished[item.id], origin(item, request, loaded.name))
            ready[index] = None
        else:
            requests[index] = request
    return Plan(requests=requests, ready=ready)


def fit(config: EngineConfig, requests: Collection[Request], loaded: LoadedModel) -> EngineConfig:
    """Return `config` with room for these requests and no more, within what the model can do."""
    if not requests:
        return config
    needs = [(len(r.prompt_token_ids) + r.sampling.max_new_tokens, r.sampling.n) for r in requests]
    length = config.max_seq_length
    if length is None:
        rounded = -(-max(need for need, _ in needs) // _ROUND_TO) * _ROUND_TO
        length = min(rounded, known_positions(_text_config(loaded).to_dict()))
    samples = sum(n for _, n in needs)
    return replace(
        config, max_seq_length=length, max_batch_size=min(config.max_batch_size, samples)
    )


def _request(item: Item, index: int, config: GenerateConfig, loaded: LoadedModel) -> Request:
    """Encode one item; its seed is `--seed` + its position where it brings none of its own."""
    if item.error is not None:
        raise RequestError(item.error)
    params = _params(item, config.sampling, loaded.generation_config)
    if params.seed is None:
        params = replace(params, seed=(config.engine.seed + index) % 2**63)
    return Request(
        prompt_token_ids=_encode(item, loaded, config.model.chat_template), sampling=params
    )


def _params(
    item: Item, given: Mapping[str, Any], generation_config: Mapping[str, Any]
) -> SamplingParams:
    """Return the item's own values over the `given` ones; raises RequestError in the line's words.

    A line calls `top_p` what the command line calls --top-p.
    """
    try:
        return resolve_sampling({**given, **item.sampling}, generation_config)
    except OutOfRange as error:
        raise RequestError(error.said(error.name)) from error
    except UsageError as error:
        raise RequestError(error.message) from error


def _encode(item: Item, loaded: LoadedModel, template: ChatTemplate) -> tuple[int, ...]:
    """Return the token ids of an item; raises RequestError."""
    if item.prompt is not None:
        return encode_raw(loaded.tokenizer, item.prompt)
    if item.messages is not None:
        family = _text_config(loaded).model_type
        return encode_chat(loaded.tokenizer, item.messages, template, family)
    assert item.prompt_token_ids is not None
    return item.prompt_token_ids


def _text_config(loaded: LoadedModel) -> Any:
    """Return the Hugging Face config of the text model."""
    return loaded.module.config
