"""vLLM behind the protocol, by a stand-in: what it is asked, and what becomes of its answers."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from logging.config import dictConfig
from pathlib import Path
from typing import Any

import pytest
import torch

from flexinfer.backends.base.protocol import Checkpoint
from flexinfer.backends.choose import load_checkpoint
from flexinfer.backends.vllm.log import UNHEARD
from flexinfer.config import EngineConfig, ModelOptions, quiet
from flexinfer.errors import EnvironmentUnfit, NotEnoughMemory, UsageError
from flexinfer.tasks.bench.measure.rig import Rig, checkpoint_cost
from flexinfer.tasks.bench.run import BenchConfig, run_bench
from tests.support.engines import request
from tests.support.tiny import save_tiny
from tests.support.vllm import FakeLLM, install

CONFIG = EngineConfig(max_batch_size=4, max_seq_length=32)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[FakeLLM]:
    """Put a stand-in in the place of vllm; returns the engines that were built."""
    return install(monkeypatch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny("qwen3", tmp_path_factory.mktemp("tiny")))


def checkpoint(folder: str, **given: Any) -> Checkpoint:
    return load_checkpoint("vllm", ModelOptions(model=folder, load_format="dummy", **given))


def test_what_it_is_built_with(folder: str, built: list[FakeLLM]) -> None:
    held = checkpoint(folder, dtype="bfloat16")
    config = EngineConfig(
        max_batch_size=4, max_seq_length=32, seed=2**32 + 5, page_size=16, kv_memory=2**20,
        cuda_graphs=False, prefill_tokens=512,
    )  # fmt: skip
    backend = held.open(config, quiet)
    expected = {
        "dtype": "bfloat16", "max_model_len": 32, "max_num_seqs": 4, "seed": 5, "block_size": 16,
        "kv_cache_memory_bytes": 2**20, "enforce_eager": True, "max_num_batched_tokens": 512,
        "gpu_memory_utilization": 0.01,
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
        request((1, 2), max_new_tokens=4, temperature=0.001),
        request((1, 2), max_new_tokens=4, temperature=3.0),
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
    assert all(p.flat_logprobs for p in params)
    assert [output.index for output in outputs] == [0, 1, 2, 3, 4, 5]
    assert "temperatures of 0.01 to 2, not at 0.001" in str(outputs[4].error)
    assert "not at 3" in str(outputs[5].error)
    assert "empty" in str(outputs[1].error)
    assert "policy log-probabilities" in str(outputs[3].error)
    assert [c.token_ids for c in outputs[0].outputs] == [(7, 8, 9)] * 2
    assert outputs[0].outputs[0].logprobs == (-0.7, -0.8, -0.9)
    assert outputs[0].outputs[0].policy_logprobs == (-0.7, -0.8, -0.9)
    assert outputs[2].outputs[0].finish_reason == "length"
    assert backend.stats.prefill_tokens == 2 * 2 + 30
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
    [
        ({"cut": 1}, "3 tokens and 3 log-probabilities came back"),
        ({"lost": 1}, "1 of 2 samples"),
        ({"off": 1}, "without an end"),
    ],
)
def test_what_comes_back_incomplete_is_an_error(
    folder: str, built: list[FakeLLM], fault: dict[str, int], words: str
) -> None:
    backend = checkpoint(folder).open(CONFIG, quiet)
    vars(built[0]).update(fault)
    asked = request((5,), max_new_tokens=4, n=2, ignore_eos=True, temperature=1.0)
    (output,) = backend.generate([asked])
    assert words in str(output.error)
    assert output.outputs == ()


def test_an_adapter_goes_by_folder(folder: str, built: list[FakeLLM], tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 12, "rank_pattern": {"q_proj": 20}}')
    backend = checkpoint(folder, adapter=str(tmp_path)).open(CONFIG, quiet)
    backend.generate([request((5,), max_new_tokens=2)])
    assert built[0].settings["max_lora_rank"] == 32
    assert built[0].settings["enable_lora"] is True
    assert built[0].loras == [("adapter", 1, str(tmp_path))]  # read before the first request
    assert built[0].calls[0][2] == ("adapter", 1, str(tmp_path))


def test_an_adapter_that_it_refuses_ends_the_engine(
    folder: str, built: list[FakeLLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: FakeLLM, lora: Any) -> bool:
        raise RuntimeError("Call to add_lora method failed: no DoRA")

    (tmp_path / "adapter_config.json").write_text('{"r": 8}')
    monkeypatch.setattr(FakeLLM, "add_lora", refuse)
    with pytest.raises(EnvironmentUnfit, match="no DoRA"):
        checkpoint(folder, adapter=str(tmp_path)).open(CONFIG, quiet)
    assert built[0].ended == 1


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"adapter": "random:4"}, "--adapter random:4"),
        ({"adapter": "x", "lora_mode": "merged"}, "--lora-mode merged"),
        ({"load_in_4bit": True}, "--load-format dummy in 4 bits"),
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
        (RuntimeError("CUDA error: an illegal memory access was encountered"), EnvironmentUnfit),
        (ValueError("Free memory on device cuda:0 (1/8 GiB) on startup is less"), NotEnoughMemory),
        (ValueError("No available memory for the cache blocks."), NotEnoughMemory),
        (ValueError("larger than the available KV cache memory (1 GiB)"), NotEnoughMemory),
        (ValueError("(12/13 GiB) on kv cache is less than requested memory"), NotEnoughMemory),
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
    def broken(name: str) -> Any:
        raise ImportError("undefined symbol")

    monkeypatch.setattr("flexinfer.backends.vllm.engine.import_module", broken)
    with pytest.raises(EnvironmentUnfit, match="undefined symbol"):
        checkpoint(folder).open(CONFIG, quiet)


def test_bench_measures_it_unchecked(folder: str, built: list[FakeLLM]) -> None:
    config = BenchConfig(
        backends=("vllm",), n_prompts=3, n_rounds=2, max_new_tokens=6, prompt_length="4:9"
    )
    row = run_bench(
        ModelOptions(model=folder, load_format="dummy"),
        EngineConfig(max_batch_size=3),
        config,
        rig=Rig(apart=False, bandwidth_apart=lambda: float(built[0].ended)),
    ).results[0]
    assert row.error is None
    assert row.roofline is not None
    assert row.roofline.copy_gb_per_s == 1e-9  # the engine had ended when it was measured
    assert any(line.startswith("roofline: bytes by the shapes") for line in row.notices)
    assert row.round_tokens == (18, 18)
    assert row.gate is None
    assert row.capture_cudagraph is True
    assert row.peak_memory_gb is None
    assert any("unchecked" in line for line in row.notices)


def test_greedy_samples_are_asked_for_one_by_one(folder: str, built: list[FakeLLM]) -> None:
    backend = checkpoint(folder).open(CONFIG, quiet)
    asked = [
        request((5, 6), max_new_tokens=3, n=2, ignore_eos=True),
        request((7,), max_new_tokens=2, n=2, ignore_eos=True, temperature=1.0),
    ]
    outputs = backend.generate(asked)
    prompts, params, _ = built[0].calls[0]
    assert [p["prompt_token_ids"] for p in prompts] == [[5, 6], [5, 6], [7]]
    assert [p.n for p in params] == [1, 1, 2]
    assert [[c.token_ids for c in output.outputs] for output in outputs] == [
        [(7, 8, 9)] * 2,
        [(7, 8)] * 2,
    ]


def test_closing_ends_its_process_once(folder: str, built: list[FakeLLM]) -> None:
    backend = checkpoint(folder).open(CONFIG, quiet)
    where = Path(built[0].settings["model"])
    assert where.exists()
    backend.close()
    backend.close()
    assert built[0].ended == 1
    assert not where.exists()
    with pytest.raises(UsageError, match="closed"):
        backend.generate([request((5,))])


def test_a_step_holds_a_token_of_every_sequence(folder: str, built: list[FakeLLM]) -> None:
    config = EngineConfig(max_batch_size=4, max_seq_length=32, prefill_tokens=3)
    with pytest.raises(UsageError, match="--prefill-tokens 3 is less than --max-batch-size 4"):
        checkpoint(folder).open(config, quiet)
    assert built == []


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Take back what a test configures of vLLM's loggers."""
    yield
    for name in ("vllm", *UNHEARD):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], True
        logger.setLevel(logging.NOTSET)


@pytest.mark.usefixtures("own_logging")
def test_what_its_engine_logs_is_told_where_it_dies(
    folder: str,
    built: list[FakeLLM],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As vLLM does: its config of logging is read from a file, its engine's traceback logged."""
    vllm = sys.modules["vllm"]
    made, seen = vllm.LLM, []

    def llm(**settings: Any) -> FakeLLM:
        seen.append(os.environ["VLLM_WORKER_MULTIPROC_METHOD"])
        dictConfig(json.loads(Path(os.environ["VLLM_LOGGING_CONFIG_PATH"]).read_text()))
        return made(**settings)

    monkeypatch.setattr(vllm, "LLM", llm)
    for name in ("VLLM_WORKER_MULTIPROC_METHOD", "VLLM_LOGGING_CONFIG_PATH"):
        monkeypatch.delenv(name, raising=False)
    backend = checkpoint(folder).open(CONFIG, quiet)
    assert seen == ["spawn"]
    assert "VLLM_LOGGING_CONFIG_PATH" not in os.environ
    try:
        raise MemoryError
    except MemoryError as error:
        told = RuntimeError("CUDA out of memory. Tried to allocate 9 GiB\nmore")
        told.__cause__ = error
        logging.getLogger("vllm.v1").error("EngineCore failed to start.", exc_info=told)
    built[0].died = True
    with pytest.raises(NotEnoughMemory) as caught:
        backend.generate([request((5,))])
    assert caught.value.message == "vllm: RuntimeError: CUDA out of memory. Tried to allocate 9 GiB"
    out, err = capsys.readouterr()
    assert (out, "EngineCore failed to start." in err) == ("", True)
    backend.close()


@pytest.mark.parametrize("variable", ["VLLM_CONFIGURE_LOGGING", "VLLM_LOGGING_CONFIG_PATH"])
def test_a_users_own_logging_stays(
    folder: str, built: list[FakeLLM], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "0")
    seen: list[str | None] = []
    made = sys.modules["vllm"].LLM

    def llm(**settings: Any) -> FakeLLM:
        seen.append(os.environ.get("VLLM_LOGGING_CONFIG_PATH"))
        return made(**settings)

    monkeypatch.setattr(sys.modules["vllm"], "LLM", llm)
    checkpoint(folder).open(CONFIG, quiet)
    assert seen == [os.environ.get("VLLM_LOGGING_CONFIG_PATH")]
    assert os.environ[variable] == "0"


def test_of_a_multimodal_checkpoint_the_text_model_is_taken(
    tmp_path: Path, built: list[FakeLLM]
) -> None:
    folder = save_tiny("gemma4", tmp_path)
    text = json.loads((folder / "config.json").read_text())
    whole = {"model_type": "gemma4", "dtype": "bfloat16", "text_config": text, "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(whole))
    checkpoint(str(folder)).open(CONFIG, quiet)
    assert built[0].settings["language_model_only"] is True
    assert built[0].config_json["model_type"] == "gemma4_text"


def test_its_decode_cost_is_that_of_the_shapes(folder: str, built: list[FakeLLM]) -> None:
    dense = load_checkpoint("flex", ModelOptions(model=folder, load_format="dummy", device="cpu"))
    own, shapes = checkpoint_cost(dense), checkpoint_cost(checkpoint(folder, dtype="float32"))
    assert own == shapes
    half = checkpoint_cost(checkpoint(folder, dtype="bfloat16"))
    assert half.weight_bytes * 2 == own.weight_bytes


@pytest.mark.parametrize(("present", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_its_dtype_and_device_are_those_of_every_back_end(
    folder: str,
    built: list[FakeLLM],
    monkeypatch: pytest.MonkeyPatch,
    present: bool,
    dtype: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: present)
    checkpoint(folder).open(CONFIG, quiet)
    assert built[0].settings["dtype"] == dtype
    if present:
        with pytest.raises(UsageError, match=r"^--device cpu is not for vllm"):
            checkpoint(folder, device="cpu")
    else:
        checkpoint(folder, device="cpu")


@pytest.mark.parametrize("halt", [KeyboardInterrupt(), RuntimeError("no more")])
def test_a_call_that_broke_off_is_not_gone_on_with(
    folder: str, built: list[FakeLLM], halt: BaseException
) -> None:
    """vLLM would serve what is left of it first, and its outputs fit no request."""
    backend = checkpoint(folder).open(CONFIG, quiet)
    built[0].halts = halt
    with pytest.raises((KeyboardInterrupt, EnvironmentUnfit)):
        backend.generate([request((5,))])
    built[0].halts = None
    with pytest.raises(UsageError, match="broke off"):
        backend.generate([request((5,))])
    backend.close()
    assert built[0].ended == 1


def test_a_shutdown_that_fails_leaves_nothing(folder: str, built: list[FakeLLM]) -> None:
    backend = checkpoint(folder).open(CONFIG, quiet)
    where = Path(built[0].settings["model"])
    built[0].unending = True
    with pytest.raises(RuntimeError, match="cannot end"):
        backend.close()
    assert not where.exists()
    backend.close()


def test_an_engine_that_is_killed_is_not_waited_for(
    folder: str, built: list[FakeLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's client sees that its process is gone, and waits for its outputs all the same."""
    monkeypatch.setattr("flexinfer.backends.vllm.awaited.POLL_S", 0.01)
    backend, before = checkpoint(folder).open(CONFIG, quiet), threading.active_count()
    built[0].killed = True
    with pytest.raises(EnvironmentUnfit, match="its engine's process ended early"):
        backend.generate([request((5,))])
    assert threading.active_count() == before


def test_a_death_without_a_word_is_one_line(folder: str, built: list[FakeLLM]) -> None:
    backend = checkpoint(folder).open(CONFIG, quiet)
    built[0].died = True
    with pytest.raises(EnvironmentUnfit, match=r"^vllm: its engine's process ended early"):
        backend.generate([request((5,))])
