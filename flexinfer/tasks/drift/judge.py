"""From a loaded model to the verdicts: hash, record, hash again, score, check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flexinfer.config import EngineConfig, Report
from flexinfer.tasks.drift.checks import (
    Check,
    base_check,
    batch_check,
    graph_check,
    invariant_check,
    recorded_checks,
    trainer_checks,
)
from flexinfer.tasks.drift.config import DriftConfig
from flexinfer.tasks.drift.prompts import Prompt
from flexinfer.tasks.drift.record import Record, Recorder
from flexinfer.tasks.drift.report import DriftReport
from flexinfer.tasks.drift.rig import Rig
from flexinfer.tasks.drift.score import Scores, score
from flexinfer.tasks.reference.linears import is_packed, linears
from flexinfer.weights.digest import digest
from flexinfer.weights.load import LoadedModel

SHORT: Mapping[str, str] = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
GIVEN, MOVED = "adapter as given", "adapter moved"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Everything that was found out about an engine."""

    loaded: LoadedModel
    config: DriftConfig
    prompts: Sequence[Prompt]
    before: str
    after: str
    record: Record
    scores: Mapping[str, Scores]
    exact: bool

    def checks(self) -> Iterator[Check]:
        """Yield every check in the order of the report."""
        yield base_check(self.before, self.after, self.config.cycles)
        yield from recorded_checks(self.record)
        yield from trainer_checks(self.scores)
        given = self.scores[GIVEN]
        yield batch_check(self.record, given, exact=self.exact)
        graphs = graph_check(self.record, given, exact=self.exact)
        yield from (one for one in (graphs, invariant_check(self.record)) if one is not None)

    def reported(self, config: Mapping[str, Any], started_at: str) -> DriftReport:
        """Put it into the report."""
        choice, record = self.loaded.adapter, self.record
        assert choice is not None
        dtype = self.scores[GIVEN].reference.dtype
        packed = any(is_packed(layer) for _, layer in linears(self.loaded.module).values())
        checks = tuple(self.checks())
        return DriftReport(
            config=config,
            started_at=started_at,
            mode=f"{'4bit' if packed else SHORT[dtype]}+lora",
            model_name=self.loaded.name,
            dtype=dtype,
            lora_mode=record.mode,
            adapter=record.adapter.name,
            adapter_sha=record.adapter_sha,
            n_iters=self.config.cycles,
            noise_scale=self.config.noise_scale,
            base_hash_before=self.before,
            base_hash_after=self.after,
            inference_hash_initial_merged=record.first.sha,
            inference_hash_after_restore=record.restored.sha,
            inference_deterministic=record.first.sha == record.again.sha,
            prompt_tokens=tuple(map(len, self.prompts)),
            trainer={name: scores.as_dict() for name, scores in self.scores.items()},
            checks=checks,
            notices=record.notices,
        )


def judged(
    loaded: LoadedModel,
    engine: EngineConfig,
    config: DriftConfig,
    prompts: Sequence[Prompt],
    rig: Rig,
    report: Report,
    notice: Callable[[str], None],
) -> Judged:
    """Do the work, the engines' before the trainer's: their memory is free again by then."""
    report("hashing the base", 0, 0)
    before = digest(loaded.module)
    record = Recorder(
        loaded=loaded, engine=engine, config=config, prompts=prompts, rig=rig, report=report,
        notice=notice,
    ).record()  # fmt: skip
    report("hashing the base", 0, 0)
    after = digest(loaded.module)
    return Judged(
        loaded=loaded, config=config, prompts=prompts, before=before, after=after, record=record,
        scores=_scores(loaded, record, report), exact=engine.batch_invariant,
    )  # fmt: skip


def _scores(loaded: LoadedModel, record: Record, report: Report) -> dict[str, Scores]:
    """Let the trainer score the rollouts of the adapter brought back, and of the moved one."""
    assert loaded.adapter is not None
    source, merged = loaded.adapter.source, record.mode == "merged"
    report("the trainer scores", 0, 2)
    given = score(loaded.module, record.restored.rollout, record.adapter, source, merged=merged)
    report("the trainer scores", 1, 2)
    moved = score(loaded.module, record.last.rollout, record.moved, source, merged=merged)
    return {GIVEN: given, MOVED: moved}
