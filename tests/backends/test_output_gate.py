"""The output gate over real engines: right ones pass in every family, wrong ones do not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from flexinfer.backends.flex import FlexBackend, FlexCheckpoint
from flexinfer.config import EngineConfig, ModelOptions, Report, quiet
from flexinfer.engine.engine import Engine
from flexinfer.engine.requests.outputs import Completion, EngineStats, Request, RequestOutput
from flexinfer.errors import NotEnoughMemory
from flexinfer.tasks.bench.compare.gate import Gate
from flexinfer.tasks.bench.measure import rows
from flexinfer.tasks.bench.measure.probe import check_output
from flexinfer.tasks.bench.run import BenchConfig, BenchReport, Rig, run_bench
from flexinfer.tasks.reference import forced
from flexinfer.tasks.workload import workload
from tests.support.engines import loaded, make_engine, tiny
from tests.support.tiny import FAMILIES, VOCAB, tiny_gemma4

CONFIG = BenchConfig(n_prompts=5, n_rounds=1, max_new_tokens=20, prompt_length="5:24")
BATCH = 4


def gate_of(engine: Engine, module: PreTrainedModel, config: BenchConfig = CONFIG) -> Gate:
    """Check an engine against a module, on CONFIG's workload."""
    prompts = workload(config.n_prompts, VOCAB, config.lengths)
    with engine:
        gate, samples = check_output(FlexBackend(engine), module, config, prompts, BATCH)
    assert gate is not None
    assert [len(sample.token_ids) for sample in samples] == [16] * BATCH
    return gate


def engine_over(model: str | PreTrainedModel) -> Engine:
    return make_engine(model, max_batch_size=BATCH, page_size=8)


def in_bfloat16(family: str) -> PreTrainedModel:
    return copy.deepcopy(tiny(family)).bfloat16()


@pytest.mark.parametrize("n_samples", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_right_engine_passes(family: str, n_samples: int) -> None:
    config = replace(CONFIG, n_samples=n_samples)
    gate = gate_of(engine_over(family), tiny(family), config)
    assert gate.problem is None, gate.summary
    assert gate.checked == gate.agreed > 50
    assert gate.mean_logprob_gap is not None
    assert gate.mean_logprob_gap < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_a_right_engine_passes_in_bfloat16(family: str) -> None:
    module = in_bfloat16(family)
    gate = gate_of(engine_over(module), module)
    assert gate.problem is None, gate.summary
    assert gate.checked > 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [7, 9])
def test_a_window_off_by_one_is_caught(window: int, dtype: torch.dtype) -> None:
    settings = {"tie_word_embeddings": False, "seed": 8}
    wrong = tiny_gemma4(sliding_window=window, **settings).to(dtype)
    gate = gate_of(engine_over(wrong), copy.deepcopy(tiny("gemma4")).to(dtype))
    assert gate.problem is not None
    assert gate.first_divergence is not None


@pytest.mark.parametrize("family", FAMILIES)
def test_one_row_of_one_weight_in_error_is_caught(family: str) -> None:
    module = copy.deepcopy(tiny(family))
    with torch.no_grad():
        module.model.layers[3].mlp.down_proj.weight[5].mul_(1.2)
    assert gate_of(engine_over(module), tiny(family)).problem is not None


Tamper = Callable[[list[RequestOutput]], list[RequestOutput]]


@dataclass(frozen=True)
class Tampered:
    """An engine whose outputs are changed on their way."""

    inner: FlexBackend
    tamper: Tamper
    calls: list[int]
    name: str = "flex"
    notices: tuple[str, ...] = ("attention: tampered",)
    adapter: None = None

    @property
    def stats(self) -> EngineStats:
        return self.inner.stats

    @property
    def max_seq_length(self) -> int:
        return self.inner.max_seq_length

    def generate(self, requests: Sequence[Request]) -> list[RequestOutput]:
        self.calls.append(len(requests))
        return self.tamper(self.inner.generate(requests))

    def close(self) -> None:
        self.inner.close()


@dataclass(frozen=True)
class TamperedCheckpoint(FlexCheckpoint):
    """Opens tampered engines, and counts what they are asked."""

    tamper: Tamper = lambda outputs: outputs
    calls: tuple[list[int], ...] = ()

    def open(self, config: EngineConfig, report: Report) -> Any:
        return Tampered(super().open(config, report), self.tamper, self.calls[0])


def bench(tamper: Tamper, **given: Any) -> tuple[BenchReport, list[int]]:
    """Run bench over a tampered engine; return the report and the sizes of its calls."""
    calls: list[int] = []
    held = TamperedCheckpoint(loaded(tiny("qwen3")), tamper=tamper, calls=(calls,))
    name = held.model_name
    rig = replace(Rig(), load=lambda name, options, report: held, model_name=lambda model: name)
    engine = EngineConfig(attention="dense", max_batch_size=BATCH, page_size=8)
    config = replace(CONFIG, **given)
    report = run_bench(ModelOptions(model="tiny"), engine, config, quiet, rig=rig)
    return report, calls


def changed(number: int, change: Callable[[Completion], Completion]) -> Tamper:
    """Tamper with every sample of request `number`."""

    def tamper(outputs: list[RequestOutput]) -> list[RequestOutput]:
        samples = tuple(map(change, outputs[number].outputs))
        outputs[number] = replace(outputs[number], outputs=samples)
        return outputs

    return tamper


def shifted(sample: Completion) -> Completion:
    """Replace the fourth token by its neighbour in the vocabulary."""
    ids = list(sample.token_ids)
    ids[3:4] = [(token + 1) % VOCAB for token in ids[3:4]]
    return replace(sample, token_ids=tuple(ids))


def test_one_token_off_by_one_is_refused_before_anything_is_timed() -> None:
    report, calls = bench(changed(2, shifted))
    row = report.results[0]
    assert (report.verdict, report.exit_code) == ("wrong output", 1)
    assert row.decode_tps_median is row.median_wall_s is row.prefill_tps is None
    assert row.gate is not None
    assert row.error_code == 1
    assert row.gate.agreed < row.gate.checked
    assert row.error == row.gate.problem
    assert "new token 3: the engine chose " in str(row.error)
    assert len(calls) == 1
    assert "wrong output" in report.to_json()
    assert "attention: tampered" in row.notices


def test_a_sample_that_shares_its_prompt_is_checked_too() -> None:
    def last(outputs: list[RequestOutput]) -> list[RequestOutput]:
        samples = outputs[2].outputs
        outputs[2] = replace(outputs[2], outputs=(*samples[:-1], shifted(samples[-1])))
        return outputs

    report, _ = bench(last, n_samples=2)
    assert report.verdict == "wrong output"


def test_a_right_one_is_measured_and_the_gate_is_in_the_report() -> None:
    report, calls = bench(lambda outputs: outputs)
    row = report.results[0]
    assert report.verdict == "ok"
    assert row.decode_tps_median is not None
    assert row.gate is not None
    assert row.gate.checked == row.gate.agreed
    assert row.notices[-1] == row.gate.summary
    assert len(calls) == 4
    fields = report.as_dict()["results"][0]["gate"]
    assert {"checked", "agreed", "skipped_for_margin", "mean_logprob_gap", "max_logprob_gap"} <= (
        set(fields)
    )
    assert {"first_divergence", "noise"} <= set(fields)


def test_a_gate_that_is_off_is_said_aloud() -> None:
    report, calls = bench(changed(2, shifted), gate=False)
    row = report.results[0]
    assert report.verdict == "ok"
    assert row.gate is None
    assert row.notices[-1] == "output gate: off (--no-gate); the figures are of unchecked output"
    assert len(calls) == 3


def test_memory_is_counted_from_after_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(rows, "reset_peak", lambda device: order.append("reset"))
    bench(lambda outputs: order.append("call") or outputs)
    assert order == ["call", "reset", "call", "call", "call"]


def test_log_probabilities_that_are_off_are_refused() -> None:
    def off(sample: Completion) -> Completion:
        return replace(sample, logprobs=tuple(value - 0.1 for value in sample.logprobs))

    report, _ = bench(changed(2, off))
    assert report.verdict == "wrong output"
    assert "on average" in str(report.results[0].error)


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (lambda outputs: outputs[:-1], "3 outputs for 4 requests"),
        (
            lambda outputs: [replace(outputs[0], outputs=(), error="no"), *outputs[1:]],
            "1 of 4 requests failed: no",
        ),
        (
            changed(0, lambda sample: replace(sample, token_ids=sample.token_ids[:-1])),
            "63 tokens instead of 64 (1 of 4 requests differ)",
        ),
    ],
)
def test_a_probe_that_does_not_come_back_whole(tamper: Tamper, words: str) -> None:
    report, _ = bench(tamper)
    assert report.verdict == "wrong output"
    assert words in str(report.results[0].error)


def test_a_reference_without_memory_is_told_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB.")

    monkeypatch.setattr(forced, "_logits", fail)
    with pytest.raises(NotEnoughMemory) as caught:
        bench(lambda outputs: outputs)
    assert "9.00 GiB" in caught.value.message
    assert "--no-gate" in str(caught.value.hint)
