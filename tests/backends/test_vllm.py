"""vLLM behind the protocol, by a stand-in: what it is asked, and what becomes of its answers."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from flexinfer.backends.base.protocol import Checkpoint
from flexinfer.backends.choose import load_checkpoint
from flexinfer.config import EngineConfig, ModelOptions, quiet
from flexinfer.errors import EnvironmentUnfit, NotEnoughMemory, UsageError
from flexinfer.tasks.bench.run import BenchConfig, run_bench
from tests.support.engines import request
from tests.support.tiny import save_tiny

CONFIG = EngineConfig(max_batch_size=4, max_seq_length=32)


@dataclass
class FakeLLM:
    """Answers with 7, 8, 9, ... and log-probabilities -0.7, -0.8, ...; keeps what it was given."""

    settings: dict[str, Any]
    config_json: Any = None
    calls: list[tuple[Any, Any, Any]] = field(default_factory=list)
    cut: int = 0
    lost: int = 0

    def generate(self, prompts: Any, params: Any, use_tqdm: bool, lora_request: Any) -> list[Any]:
        assert use_tqdm is False
        self.calls.append((prompts, params, lora_request))
        return [SimpleNamespace(outputs=self.samples(p)) for p in params]

    def samples(self, params: Any) -> list[Any]:
        tokens = list(range(7, 7 + params.max_tokens))
        for number, token in enumerate(tokens):
            if token in params.stop_token_ids:
                tokens = tokens[: number + 1]
                break
        tokens = tokens[: len(tokens) - self.cut]
        rows = [{t: SimpleNamespace(logprob=-t / 10)} for t in tokens]
        one = SimpleNamespace(token_ids=tokens, logprobs=rows)
        return [one] * (params.n - self.lost)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[FakeLLM]:
    """Put a stand-in in the place of vllm; returns the engines that were built."""
    engines: list[FakeLLM] = []

    def llm(**settings: Any) -> FakeLLM:
        file = Path(settings["model"]) / "config.json"
        engines.append(FakeLLM(settings, json.loads(file.read_text())))
        return engines[-1]

    vllm, lora = ModuleType("vllm"), ModuleType("vllm.lora.request")
    vllm.__spec__ = ModuleSpec("vllm", None)
    vars(vllm).update(LLM=llm, SamplingParams=SimpleNamespace, __version__="0.0")
    vars(lora).update(LoRARequest=lambda *given: given)
    for name, module in (("vllm", vllm), ("vllm.lora", ModuleType("l")), (lora.__name__, lora)):
        monkeypatch.setitem(sys.modules, name, module)
    return engines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny("qwen3", tmp_path_factory.mktemp("tiny")))


def checkpoint(folder: str, **given: Any) -> Checkpoint:
    return load_checkpoint("vllm", ModelOptions(model=folder, load_format="dummy", **given))


def test_what_it_is_built_with(folder: str, built: list[FakeLLM]) -> None:
    held = checkpoint(folder, dtype="bfloat16")
    config = EngineConfig(
        max_batch_size=4, max_seq_length=32, seed=5, page_size=16, kv_memory=2**20,
        cuda_graphs=False, prefill_tokens=512,
    )  # fmt: skip
    backend = held.open(config, quiet)
    expected = {
        "dtype": "bfloat16", "max_model_len": 32, "max_num_seqs": 4, "seed": 5, "block_size": 16,
        "kv_cache_memory_bytes": 2**20, "enforce_eager": True, "max_num_batched_tokens": 512,
        "load_format": "dummy", "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": False, "skip_tokenizer_init": True, "generation_config": "vllm",
    }  # fmt: skip
    given = dict(built[0].settings)
    given.pop("model")
    assert given == expected
    assert built[0].config_json["model_type"] == "qwen3"
    assert (held.vocab_size, held.module, backend.max_seq_length) == (512, None, 32)
    assert any("vllm 0.0" in line for line in backend.notices)


def test_requests_and_results_are_mapped(folder: str, built: list[FakeLLM]) -> None:
    backend = checkpoint(folder).open(CONFIG, quiet)
    asked = [
        request((5, 6), max_new_tokens=3, temperature=0.5, n=2, seed=4, ignore_eos=True),
        request((), max_new_tokens=3),
        request((9,) * 30, max_new_tokens=9, ignore_eos=True),
        request((1, 2), max_new_tokens=4, temperature=1.0, top_p=0.5),
    ]
    outputs = backend.generate(asked)
    prompts, params, lora = built[0].calls[0]
    assert prompts == [{"prompt_token_ids": [5, 6]}, {"prompt_token_ids": [9] * 30}]
    assert lora is None
    assert [(p.n, p.temperature, p.max_tokens, p.logprobs) for p in params] == [
        (2, 0.5, 3, 0),
        (1, 0.0, 2, 0),
    ]
    assert all(p.ignore_eos and p.stop_token_ids == [] and not p.detokenize for p in params)
    assert [output.index for output in outputs] == [0, 1, 2, 3]
    assert "empty" in str(outputs[1].error)
    assert "policy log-probabilities" in str(outputs[3].error)
    assert [c.token_ids for c in outputs[0].outputs] == [(7, 8, 9)] * 2
    assert outputs[0].outputs[0].logprobs == (-0.7, -0.8, -0.9)
    assert outputs[0].outputs[0].policy_logprobs == (-0.7, -0.8, -0.9)
    assert outputs[2].outputs[0].finish_reason == "length"
    assert backend.stats.prefill_tokens == 32
    assert backend.stats.decode_tokens == 2 * 2 + 1
    assert backend.stats.graph_replays == 2


def test_seeds_are_the_requests_or_vllms_own(folder: str, built: list[FakeLLM]) -> None:
    backend = checkpoint(folder).open(CONFIG, quiet)
    for asked in ({"seed": 4}, {"seed": 4}, {"seed": 5}, {}):
        backend.generate([request((5,), max_new_tokens=2, temperature=1.0, **asked)])
    seeds = [call[1][0].seed for call in built[0].calls]
    assert seeds[0] == seeds[1] != seeds[2]
    assert seeds[3] is None


def test_an_eos_ends_a_sample(tmp_path: Path, built: list[FakeLLM]) -> None:
    folder = str(save_tiny("qwen3", tmp_path, eos_token_id=[9, 400]))
    backend = checkpoint(folder).open(CONFIG, quiet)
    (output,) = backend.generate([request((5,), max_new_tokens=6)])
    assert built[0].calls[0][1][0].stop_token_ids == [9, 400]
    assert output.outputs[0].token_ids == (7, 8, 9)
    assert (output.outputs[0].finish_reason, output.outputs[0].stop) == ("stop", 9)


@pytest.mark.parametrize(
    ("fault", "words"),
    [({"cut": 1}, "3 tokens and 3 log-probabilities came back"), ({"lost": 1}, "1 of 2 samples")],
)
def test_what_comes_back_incomplete_is_an_error(
    folder: str, built: list[FakeLLM], fault: dict[str, int], words: str
) -> None:
    backend = checkpoint(folder).open(CONFIG, quiet)
    vars(built[0]).update(fault)
    (output,) = backend.generate([request((5,), max_new_tokens=4, n=2, ignore_eos=True)])
    assert words in str(output.error)
    assert output.outputs == ()


def test_an_adapter_goes_by_folder(folder: str, built: list[FakeLLM], tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 12, "rank_pattern": {"q_proj": 20}}')
    backend = checkpoint(folder, adapter=str(tmp_path)).open(CONFIG, quiet)
    backend.generate([request((5,), max_new_tokens=2)])
    assert built[0].settings["max_lora_rank"] == 32
    assert built[0].settings["enable_lora"] is True
    assert built[0].calls[0][2] == ("adapter", 1, str(tmp_path))


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"device": "cpu"}, "--device cpu"),
        ({"adapter": "random:4"}, "--adapter random:4"),
        ({"adapter": "x", "lora_mode": "merged"}, "--lora-mode merged"),
    ],
)
def test_what_it_lacks_is_refused(
    folder: str, built: list[FakeLLM], given: dict[str, Any], flag: str
) -> None:
    with pytest.raises(UsageError, match=f"^{flag} is not for vllm"):
        checkpoint(folder, **given)


def test_the_engines_own_settings_are_refused(folder: str, built: list[FakeLLM]) -> None:
    with pytest.raises(UsageError, match="--attention means nothing to vllm"):
        checkpoint(folder).open(EngineConfig(attention="dense"), quiet)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("no GPU\nhere"), EnvironmentUnfit),
        (ValueError("Free memory"), NotEnoughMemory),
    ],
)
def test_what_vllm_says_on_building_is_told_in_a_line(
    folder: str, built: list[FakeLLM], monkeypatch: pytest.MonkeyPatch, error: Any, kind: Any
) -> None:
    def fail(**settings: Any) -> Any:
        raise error

    monkeypatch.setattr(sys.modules["vllm"], "LLM", fail)
    with pytest.raises(kind) as caught:
        checkpoint(folder).open(CONFIG, quiet)
    assert caught.value.message == "vllm: " + " ".join(str(error).split())


def test_a_broken_package_is_exit_3(
    folder: str, built: list[FakeLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    from flexinfer.backends import vllm_checkpoint

    def broken(name: str) -> Any:
        raise ImportError("undefined symbol")

    monkeypatch.setattr(vllm_checkpoint, "import_module", broken)
    with pytest.raises(EnvironmentUnfit, match="undefined symbol"):
        checkpoint(folder).open(CONFIG, quiet)


def test_bench_measures_it_unchecked(folder: str, built: list[FakeLLM]) -> None:
    config = BenchConfig(
        backends=("vllm",), n_prompts=3, n_rounds=2, max_new_tokens=6, prompt_length="4:9"
    )
    row = run_bench(
        ModelOptions(model=folder, load_format="dummy"), EngineConfig(max_batch_size=3), config
    ).results[0]
    assert row.error is None
    assert row.round_tokens == (18, 18)
    assert row.gate is None
    assert row.capture_cudagraph is True
    assert row.peak_memory_gb is None
    assert any("unchecked" in line for line in row.notices)
