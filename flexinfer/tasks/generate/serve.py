"""Serving a plan: the engine's answers become records, passed on in input order and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flexinfer.config import Report
from flexinfer.tasks.generate.input import Item
from flexinfer.tasks.generate.output import InOrder
from flexinfer.tasks.generate.records import Record, done_record
from flexinfer.tasks.generate.requests import Plan
from flexinfer.tasks.generate.text import TextStream

if TYPE_CHECKING:
    from flexinfer.engine.engine import Engine


@dataclass(kw_only=True)
class Tally:
    """What was passed on; `ended_by` is the interruption or failure that cut the work short.

    `no_room` holds the positions of requests with a sample that the longest sequence ended.
    """

    done: int = 0
    failed: int = 0
    new_tokens: int = 0
    no_room: set[int] = field(default_factory=set)
    ended_by: BaseException | None = None

    def count(self, record: Record) -> None:
        """Count one record."""
        self.failed += "error" in record
        self.done += "error" not in record
        self.new_tokens += sum(len(sample["token_ids"]) for sample in record["outputs"])


def serve(
    plan: Plan,
    items: Sequence[Item],
    engine: Engine | None,
    weights: Mapping[str, Any],
    emit: Callable[[Record], None],
    report: Report,
    on_text: Callable[[str], None] | None,
) -> Tally:
    """Pass on what is ready and what `engine` answers (None: nothing is left to ask it).

    `weights` is what records say of the weights.

    Whatever ends the work early, an interruption or a failure of the engine or of `emit`, is kept
    in the tally; what was finished by then has been passed on.
    """
    tally = Tally()

    def pass_on(record: Record) -> None:
        emit(record)
        tally.count(record)

    try:
        with InOrder(pass_on) as ordered:
            for index, record in plan.ready.items():
                ordered.put(index, record)
            if engine is not None:
                answers = _answers(plan, items, engine, weights, on_text)
                for number, (index, record) in enumerate(answers, start=1):
                    if _ran_out(record, plan.requests[index].sampling.max_new_tokens):
                        tally.no_room.add(index)
                    ordered.put(index, record)
                    report("generate", number, len(plan.requests))
    except (Exception, KeyboardInterrupt) as error:
        tally.ended_by = error
    return tally


def _ran_out(record: Record, allowed: int) -> bool:
    """Tell whether a sample of `record` came to its end before the new tokens it was allowed."""
    samples = record["outputs"]
    return any(s["finish_reason"] == "length" and len(s["token_ids"]) < allowed for s in samples)


def _answers(
    plan: Plan,
    items: Sequence[Item],
    engine: Engine,
    weights: Mapping[str, Any],
    on_text: Callable[[str], None] | None,
) -> Iterator[tuple[int, Record]]:
    """Yield (position, record) as requests are finished, a single sample's text as it grows."""
    places, requests = list(plan.requests), list(plan.requests.values())
    stream: TextStream | None = None
    if on_text is not None and len(requests) == 1:
        params = requests[0].sampling
        assert params.n == 1, "only a single sample can be shown while it grows"
        ends = () if params.ignore_eos else engine.eos_ids
        stream = TextStream(engine.tokenizer, params.stop, ends, on_text)

    def on_token(request: int, sample: int, token: int) -> None:
        if stream is not None:
            stream.add(token)

    for output in engine.stream(requests, on_token):
        if stream is not None and output.error is None:
            stream.finish(output.outputs[0].text)
        index, model = places[output.index], engine.model_name
        yield index, done_record(items[index], plan.requests[index], output, model, weights)
