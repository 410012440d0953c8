"""What `generate` writes of a request: what came out and from what, or why nothing did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from flexinfer.engine.requests.outputs import Request, RequestOutput
from flexinfer.tasks.generate.input import Item

Record = dict[str, Any]


def done_record(
    item: Item, request: Request, output: RequestOutput, model: str, weights: Mapping[str, Any]
) -> Record:
    """Return the record of a request that the engine has answered, or refused.

    `weights` says which ones it was made with.
    """
    if output.error is not None:
        return failed_record(item, output.error, request.prompt_token_ids)
    outputs = []
    for sample in output.outputs:
        values = asdict(sample)
        if not request.sampling.logprobs:
            del values["logprobs"], values["policy_logprobs"]
        outputs.append({k: list(v) if isinstance(v, tuple) else v for k, v in values.items()})
    head = origin(item, request, model)
    return {
        "id": item.id,
        "prompt_token_ids": head.pop("prompt_token_ids"),
        "outputs": outputs,
        **weights,
        **head,
    }


def failed_record(item: Item, error: str, prompt_token_ids: tuple[int, ...] = ()) -> Record:
    """Return the record of a request that was not served; the error names the item's line."""
    ids = list(prompt_token_ids)
    said = error if item.line is None else f"line {item.line}: {error}"
    return {"id": item.id, "prompt_token_ids": ids, "outputs": [], "error": said}


def origin(item: Item, request: Request, model: str) -> Record:
    """Return what a record was made from, as JSON has it."""
    sampling = asdict(request.sampling)
    return {
        "prompt_token_ids": list(request.prompt_token_ids),
        "model": model,
        "sampling": sampling | {"stop": list(request.sampling.stop)},
    }


def refusals(items: Iterable[Item]) -> dict[int, Record]:
    """Return the records of the items that no model needs to be asked about, by position."""
    return {i: failed_record(x, x.error) for i, x in enumerate(items) if x.error is not None}
