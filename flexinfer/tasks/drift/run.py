"""`verify-drift`: is what an engine rolls out with the trainer's policy, and its base untouched?

For the command line:

- `DriftConfig(...)` validates its values.
- `run_drift(options, engine_config, drift_config, report, notice) -> DriftReport`.
- `render(report, as_json, width) -> str` is what goes to stdout; exit with `report.exit_code`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from flexinfer.config import EngineConfig, ModelOptions, Report, quiet
from flexinfer.errors import UsageError
from flexinfer.tasks.drift.config import DriftConfig
from flexinfer.tasks.drift.rig import Rig
from flexinfer.tasks.environment import now
from flexinfer.tasks.threads import own_threads
from flexinfer.weights.names import RANDOM_RANK

__all__ = ["DriftConfig", "render", "run_drift"]

if TYPE_CHECKING:
    from flexinfer.tasks.drift.prompts import Prompt
    from flexinfer.tasks.drift.report import DriftReport
    from flexinfer.weights.load import LoadedModel


def run_drift(
    options: ModelOptions,
    engine_config: EngineConfig,
    config: DriftConfig,
    report: Report = quiet,
    notice: Callable[[str], None] = lambda line: None,
    *,
    rig: Rig | None = None,
) -> DriftReport:
    """Load, put engines through the cycles, score by the trainer and judge.

    `notice` hears what runs and why. Raises UsageError, EnvironmentUnfit or NotEnoughMemory where
    it cannot be done, RequestError where an engine does not serve a prompt.
    """
    from flexinfer.tasks.drift.judge import judged

    rig, started_at = rig or Rig(), now()
    loaded = _adapted(rig.load(_with_adapter(options), report), options, notice)
    prompts, engine_config = _work(loaded, engine_config, config, notice)
    with own_threads(loaded.module) as threads:
        for line in threads:
            notice(line)
        found = judged(loaded, engine_config, config, prompts, rig, report, notice)
    assert loaded.adapter is not None
    settings: dict[str, Any] = {
        "model": asdict(options) | {"adapter": str(loaded.adapter.source)},
        "engine": asdict(engine_config),
        "drift": asdict(config),
    }
    return found.reported(settings, started_at)


def render(report: DriftReport, as_json: bool, width: int | None = None) -> str:
    """Return what goes to stdout, ending in a newline."""
    from flexinfer.tasks.drift.table import as_table

    return report.to_json() if as_json else as_table(report, width)


def _with_adapter(options: ModelOptions) -> ModelOptions:
    """Return the options with a random adapter where none is given."""
    return replace(options, adapter=options.adapter or "random")


def _adapted(
    loaded: LoadedModel, options: ModelOptions, notice: Callable[[str], None]
) -> LoadedModel:
    """Make a random adapter's rank one that fits the model, where none is given; and say so."""
    if options.adapter is not None:
        return loaded
    assert loaded.adapter is not None
    module: Any = loaded.module
    hidden: int = module.get_input_embeddings().weight.shape[1]
    source = f"random:{max(1, min(RANDOM_RANK, hidden // 8))}"
    notice(f"--adapter not given: {source}, seeded and with an effect")
    return replace(loaded, adapter=replace(loaded.adapter, source=source))


def _work(
    loaded: LoadedModel, engine: EngineConfig, config: DriftConfig, notice: Callable[[str], None]
) -> tuple[tuple[Prompt, ...], EngineConfig]:
    """Return the prompts, and the engine's settings with room for them; raises UsageError."""
    from flexinfer.engine.requests.limits import known_positions
    from flexinfer.engine.setup import PAGE_SIZE
    from flexinfer.models.catalog import build_decoder
    from flexinfer.tasks.drift.prompts import draw, lengths

    module: Any = loaded.module
    decoder, device = build_decoder(module), module.device
    windows = [spec.window for spec in decoder.specs if spec.window is not None]
    page, new = engine.page_size or PAGE_SIZE[device.type], config.max_new_tokens
    longest = engine.max_seq_length or known_positions(module.config.to_dict())
    if new >= longest:
        raise UsageError(
            f"--max-new-tokens {new} leaves no room for a prompt within {longest} tokens",
            hint="lower --max-new-tokens or raise --max-seq-length",
        )
    sizes = lengths(windows, page, new, config.n_prompts, longest)
    reach = max(sizes) + new
    if any(window >= reach for window in windows):
        notice(
            f"window {max(windows)} is not crossed: sequences have up to {reach} tokens "
            "(--max-seq-length, --n-prompts)"
        )
    fitting = replace(engine, max_seq_length=engine.max_seq_length or reach)
    return draw(sizes, decoder.vocab_size, config.seed), fitting
