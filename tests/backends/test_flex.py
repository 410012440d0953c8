"""The engine as a back end: one checkpoint, several engines over it, figures from a real run."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexinfer.backends.base.protocol import Backend, Checkpoint
from flexinfer.backends.choose import load_checkpoint
from flexinfer.config import EngineConfig, ModelOptions, SamplingParams, quiet
from flexinfer.engine.requests.outputs import Request
from flexinfer.tasks.bench.measure.rig import checkpoint_cost
from flexinfer.tasks.bench.run import BenchConfig, run_bench
from tests.support.tiny import VOCAB, save_tiny

DENSE = EngineConfig(max_batch_size=2, max_seq_length=40, attention="dense")


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> ModelOptions:
    folder = save_tiny("gemma4", tmp_path_factory.mktemp("tiny"))
    return ModelOptions(model=str(folder), load_format="dummy", device="cpu")


@pytest.fixture(scope="module")
def checkpoint(options: ModelOptions) -> Checkpoint:
    return load_checkpoint("flex", options)


def greedy_ids(backend: Backend) -> list[tuple[int, ...]]:
    params = SamplingParams(max_new_tokens=6, ignore_eos=True)
    requests = [Request(prompt_token_ids=ids, sampling=params) for ids in ((5, 6, 7), (9,), ())]
    outputs = backend.generate(requests)
    assert [output.index for output in outputs] == [0, 1, 2]
    assert outputs[2].error is not None
    return [output.outputs[0].token_ids for output in outputs[:2]]


def test_what_a_checkpoint_says(checkpoint: Checkpoint) -> None:
    assert checkpoint.backend_name == "flex"
    assert checkpoint.vocab_size == VOCAB
    assert checkpoint.device == "cpu"
    assert checkpoint.load_s > 0
    assert checkpoint.module is not None


def test_engines_follow_each_other_over_the_same_weights(checkpoint: Checkpoint) -> None:
    ids = []
    for _ in range(2):
        backend = checkpoint.open(DENSE, quiet)
        ids.append(greedy_ids(backend))
        assert backend.max_seq_length == 40
        assert backend.stats.eager_steps > 0
        assert any("dense" in notice for notice in backend.notices)
        backend.close()
    assert ids[0] == ids[1]
    assert [len(sample) for sample in ids[0]] == [6, 6]


def test_its_decode_cost_is_known(checkpoint: Checkpoint) -> None:
    cost = checkpoint_cost(checkpoint)
    assert cost is not None
    assert len(cost.layers) == 8
    assert cost.weight_bytes > 0


def test_a_real_bench(options: ModelOptions) -> None:
    config = BenchConfig(
        n_prompts=3, n_rounds=2, max_new_tokens=6, prompt_length="4:12", batch_sizes=(1, 3)
    )
    report = run_bench(options, EngineConfig(attention="dense"), config)
    assert report.verdict == "ok"
    for row in report.results:
        assert row.round_tokens == (18, 18)
        assert row.capture_cudagraph is False
        assert row.graph_replays == 0
        assert row.preemptions == 0
        assert row.decode_tps_median is not None
        assert row.decode_tps_median > 0
        assert row.step_ms is not None
        assert row.ttft_s is not None
        assert 0 < row.ttft_s < row.median_wall_s
        assert row.roofline_pct is None
    steps = [row.eager_steps for row in report.results]
    assert steps == [2 * 3 * 5, 2 * 5]
    assert Path(report.results[0].model_name).name == Path(options.model).name


def test_samples_of_a_prompt_cost_one_prefill_in_a_real_bench(options: ModelOptions) -> None:
    config = BenchConfig(
        n_prompts=2, n_samples=4, n_rounds=1, max_new_tokens=6, prompt_length="20", batch_sizes=(8,)
    )
    row = run_bench(options, EngineConfig(attention="dense"), config).results[0]
    assert row.gate is not None
    assert row.n_prompt_tokens == 40
    assert row.prefill_tokens == 40
    assert row.n_decoded_tokens == 2 * 4 * 6
