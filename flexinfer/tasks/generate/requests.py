"""From items to requests: token ids, sampling parameters, seeds, and the room they need."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from typing import TYPE_CHECKING, Any

from flexinfer.config import ChatTemplate, EngineConfig, ModelOptions, resolve_sampling
from flexinfer.engine.outputs import Request, RequestOutput
from flexinfer.errors import OutOfRange, RequestError, UsageError
from flexinfer.tasks.generate.input import Item
from flexinfer.tasks.generate.resume import check_same

if TYPE_CHECKING:
    from flexinfer.weights.load import LoadedModel

Record = dict[str, Any]
_ROUND_TO = 64
"""A sequence length that is decided here is a multiple of this many tokens."""


@dataclass(frozen=True, kw_only=True)
class GenerateConfig:
    """What to generate, with which model and engine.

    `sampling` holds the options that were given; what it leaves out comes from the checkpoint.
    `finished` holds the records of an earlier run by id, which are not made again.
    """

    model: ModelOptions
    engine: EngineConfig
    items: tuple[Item, ...]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    finished: Mapping[str | int, Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse wrong sampling options before a model is loaded."""
        resolve_sampling(self.sampling, {})


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
            ready[index] = failed_record(item, error.message)
            continue
        if item.id in config.finished:
            check_same(config.finished[item.id], _origin(item, request, loaded.name))
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
        length = min(rounded, _text_config(loaded).max_position_embeddings)
    samples = sum(n for _, n in needs)
    return replace(
        config, max_seq_length=length, max_batch_size=min(config.max_batch_size, samples)
    )


def done_record(item: Item, request: Request, output: RequestOutput, model: str) -> Record:
    """Return the record of a request that the engine has answered, or refused."""
    if output.error is not None:
        return failed_record(item, output.error, request.prompt_token_ids)
    if not all(isfinite(value) for sample in output.outputs for value in sample.logprobs):
        error = "the model's probabilities are not finite; a wider --dtype may cure it"
        return failed_record(item, error, request.prompt_token_ids)
    outputs = []
    for sample in output.outputs:
        values = asdict(sample)
        if not request.sampling.logprobs:
            del values["logprobs"], values["policy_logprobs"]
        outputs.append({k: list(v) if isinstance(v, tuple) else v for k, v in values.items()})
    head = _origin(item, request, model)
    return {
        "id": item.id,
        "prompt_token_ids": head.pop("prompt_token_ids"),
        "outputs": outputs,
    } | head


def failed_record(item: Item, error: str, prompt_token_ids: tuple[int, ...] = ()) -> Record:
    """Return the record of a request that was not served."""
    ids = list(prompt_token_ids)
    return {"id": item.id, "prompt_token_ids": ids, "outputs": [], "error": error}


def _origin(item: Item, request: Request, model: str) -> Record:
    """Return what a record was made from, as JSON has it."""
    sampling = asdict(request.sampling)
    return {
        "prompt_token_ids": list(request.prompt_token_ids),
        "model": model,
        "sampling": sampling | {"stop": list(request.sampling.stop)},
    }


def _request(item: Item, index: int, config: GenerateConfig, loaded: LoadedModel) -> Request:
    """Encode one item; its seed is `--seed` + its position where it brings none of its own."""
    if item.error is not None:
        raise RequestError(item.error)
    try:
        params = resolve_sampling({**config.sampling, **item.sampling}, loaded.generation_config)
    except OutOfRange as error:
        raise RequestError(error.said(error.name)) from error
    except UsageError as error:
        raise RequestError(error.message) from error
    if params.seed is None:
        params = replace(params, seed=(config.engine.seed + index) % 2**63)
    return Request(
        prompt_token_ids=_encode(item, loaded, config.model.chat_template), sampling=params
    )


def _encode(item: Item, loaded: LoadedModel, template: ChatTemplate) -> tuple[int, ...]:
    """Return the token ids of an item; raises RequestError."""
    from flexinfer.engine.chat import encode_chat, encode_raw

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
