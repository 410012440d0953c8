"""Engines made wrong on purpose, to show that a comparison sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from flexinfer.engine.engine import Engine
from flexinfer.engine.requests.outputs import Completion
from flexinfer.engine.steps.graphs import DecodeRunner
from flexinfer.engine.steps.prefill import PrefillRunner
from tests.support.engines import machinery, request


def shift_windows(engine: Engine, tokens: int) -> None:
    """Make every window of an engine's decoders wider by `tokens`."""

    def shifted(decoder: Any) -> Any:
        layers = []
        for layer in decoder.layers:
            window = layer.spec.window and layer.spec.window + tokens
            layers.append(layer._replace(spec=replace(layer.spec, window=window)))
        return replace(decoder, layers=tuple(layers))

    held = machinery(engine)
    programs = replace(
        held.programs,
        prefill_decoder=shifted(held.programs.prefill_decoder),
        decode_decoder=shifted(held.programs.decode_decoder),
    )
    runner = DecodeRunner(programs, held.max_batch_size, held.runner._graphs, engine.stats)
    prefiller = PrefillRunner(programs, held.prefiller._graphs, engine.stats)
    engine._machinery = replace(held, programs=programs, runner=runner, prefiller=prefiller)


def run_changed(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    at: int,
    change: Callable[[Tensor], None],
    **sampling: Any,
) -> list[Completion]:
    """Generate, and change the page table on the device once each prompt has `at` tokens."""
    tokens: list[int] = []

    def on_token(index: int, sample: int, token: int) -> None:
        tokens.append(token)
        if len(tokens) == at * len(prompts):
            change(machinery(engine).programs.tables.table)

    requests = [request(prompt, **sampling) for prompt in prompts]
    outputs = sorted(engine.stream(requests, on_token), key=lambda output: output.index)
    return [output.outputs[0] for output in outputs]
