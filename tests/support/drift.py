"""Engines that drift, each in one way, and verify-drift over any of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from flexinfer.attention.paged import addresses
from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.engine.engine import Engine
from flexinfer.engine.steps.programs import Programs
from flexinfer.tasks.drift.report import DriftReport
from flexinfer.tasks.drift.rig import Rig
from flexinfer.tasks.drift.run import DriftConfig, run_drift
from flexinfer.tasks.reference.linears import is_packed, linears
from flexinfer.weights.adapters.adapter import Adapter
from flexinfer.weights.adapters.choice import AdapterChoice
from tests.support.engines import loaded, machinery
from tests.support.mutants import shift_windows

Spoil = Callable[[Engine, PreTrainedModel], None]


def drift(
    module: PreTrainedModel,
    spoil: Spoil = lambda engine, module: None,
    *,
    mode: str = "merged",
    adapter: str | None = None,
    engine: dict[str, Any] | None = None,
    notice: Callable[[str], None] = lambda line: None,
    **config: Any,
) -> DriftReport:
    """Run verify-drift over a module, every engine spoilt; two cycles and three prompts."""

    def load(options: ModelOptions, report: Any) -> Any:
        assert options.adapter is not None
        choice = AdapterChoice(options.adapter, options.lora_mode, options.seed)
        return replace(loaded(module), adapter=choice)

    def opened(model: Any, settings: EngineConfig, report: Any) -> Engine:
        made = Engine(model, settings, report)
        spoil(made, module)
        return made

    options = ModelOptions(model="tiny", adapter=adapter, lora_mode=mode)
    settings = {"max_batch_size": 4, "page_size": 8, "attention": "dense"} | (engine or {})
    defaults = {"cycles": 2, "n_prompts": 3, "max_new_tokens": 12}
    return run_drift(
        options,
        EngineConfig(**settings),
        DriftConfig(**defaults | config),
        notice=notice,
        rig=Rig(load=load, open=opened),
    )


def failed(report: DriftReport) -> set[str]:
    """Return the names of the checks that are not passed."""
    assert report.exit_code == int(not report.passed)
    return {check.name for check in report.checks if not check.passed}


def on_refresh(engine: Engine, then: Callable[[Callable[..., None], Any], None]) -> None:
    """Let `then(refresh, source)` take the place of an engine's refresh."""
    real = engine.refresh
    engine.refresh = lambda source=None: then(real, source)


def merging_in_place(engine: Engine, module: PreTrainedModel) -> None:
    """Merge each adapter into the base and unmerge it again, as PEFT does; refresh rightly."""

    @torch.no_grad()
    def refresh(real: Callable[..., None], source: Any) -> None:
        real(source)
        adapter = machinery(engine).weights.adapter
        assert adapter is not None
        for name, pair in adapter.pairs.items():
            weight = linears(module)[name][1].weight
            delta = (pair.scale * pair.b @ pair.a).to(weight.dtype)
            weight.add_(delta).sub_(delta)

    on_refresh(engine, refresh)


def shaking_scales(engine: Engine, module: PreTrainedModel) -> None:
    """Change one scale of one packed base weight by its last bit at a refresh."""

    def refresh(real: Callable[..., None], source: Any) -> None:
        real(source)
        packed: Any = next(layer for _, layer in linears(module).values() if is_packed(layer))
        packed.weight.quant_state.absmax[0] ^= 1

    on_refresh(engine, refresh)


def skipping_refreshes(engine: Engine, module: PreTrainedModel) -> None:
    """Keep the weights of the start, but count the version up."""

    def refresh(real: Callable[..., None], source: Any) -> None:
        engine.policy_version += 1

    on_refresh(engine, refresh)


def adding_up(engine: Engine, module: PreTrainedModel) -> None:
    """Merge each time into what the last refresh merged."""
    held: Any = machinery(engine).weights.weights
    held._bases = {
        name: base._replace(weight=held._copies[name].weight) for name, base in held._bases.items()
    }


def doubling_the_scale(engine: Engine, module: PreTrainedModel) -> None:
    """Bring every adapter in with twice its scale."""
    held: Any = machinery(engine).weights.weights
    real = held.load

    def load(adapter: Adapter) -> None:
        pairs = {n: pair._replace(scale=2 * pair.scale) for n, pair in adapter.pairs.items()}
        real(replace(adapter, pairs=pairs))

    held.load = load
    engine.refresh()


def keeping_prefixes(engine: Engine, module: PreTrainedModel) -> None:
    """Serve a prompt that was seen before from the KV that was computed then."""
    programs: Any = machinery(engine).programs
    real, seen = programs.prefill, dict[tuple[int, ...], list[Tensor]]()

    def prefill(batch: Any, kind: Any) -> Tensor:
        out: Tensor = real(batch, kind)
        table, page = programs.tables.table, programs.cache.page_size
        address = addresses(table[batch.slots], batch.positions, page)
        pools = [pool for pair in programs.cache._pools.values() for pool in pair]
        prefixes: dict[int, tuple[int, ...]] = {}
        rows = zip(batch.slots.tolist(), batch.tokens.tolist(), address.tolist(), strict=True)
        for slot, token, at in rows:
            prefix = prefixes[slot] = (*prefixes.get(slot, ()), token)
            if prefix in seen:
                for pool, old in zip(pools, seen[prefix], strict=True):
                    pool[:, :, at] = old
            else:
                seen[prefix] = [pool[:, :, at].clone() for pool in pools]
        return out

    object.__setattr__(programs, "prefill", prefill)


def shifting_windows(tokens: int) -> Spoil:
    """See one token more or less than the window."""
    return lambda engine, module: shift_windows(engine, tokens)


def mixing_rows(engine: Engine, module: PreTrainedModel) -> None:
    """Let a row of a batch of four begin as another one did."""
    programs: Any = machinery(engine).programs
    real: Callable[..., Tensor] = Programs.decode.__get__(programs)

    def decode(slots_B: Tensor, kind: Any, columns: int) -> Tensor:
        if slots_B.shape[0] == 4:
            table = programs.tables.table
            table[slots_B[0], 0] = table[slots_B[1], 0]
        return real(slots_B, kind, columns)

    object.__setattr__(programs, "decode", decode)


def forgetting_the_seed(engine: Engine, module: PreTrainedModel) -> None:
    """Add noise to the first copy at every refresh: the same adapter twice is not the same."""

    @torch.no_grad()
    def refresh(real: Callable[..., None], source: Any) -> None:
        real(source)
        held: Any = machinery(engine).weights.weights
        tensor = next(iter(held._copies.values())).weight
        tensor.add_(torch.randn_like(tensor) * 1e-3)

    on_refresh(engine, refresh)
