"""What is tuned is what real models look up; where nothing can be tuned, that is said."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from flexinfer.config import EngineConfig
from flexinfer.engine import tuning
from flexinfer.engine.setup import set_up
from flexinfer.engine.shapes import Lookups, shapes_of
from flexinfer.errors import EnvironmentUnfit, WriteFailed
from flexinfer.kernels.fast.tiles import store
from flexinfer.kernels.fast.tiles.format import shipped
from flexinfer.kernels.fast.tiles.table import TileTable
from flexinfer.kernels.fast.tuning import trials
from flexinfer.kernels.fast.tuning.race import Trial
from flexinfer.kernels.fast.tuning.tune import Processor, Shapes
from flexinfer.kernels.linear import Leaf, Packed, Separate
from flexinfer.kernels.lora import Adapted
from flexinfer.kernels.nf4 import CODE, Nf4
from flexinfer.models.catalog import build_decoder
from tests.support.tiny import tiny_llama, tiny_qwen3
from tests.support.triton_cases import META, model
from tests.support.triton_engine import fast_path

DEVICE = "a test's device"


def shapes(name: str) -> Shapes:
    return shapes_of(build_decoder(model(name).module), META)


def test_the_shapes_of_qwen() -> None:
    assert shapes("qwen3-4b") == Shapes(
        products=((6144, 2560), (2560, 4096), (2560, 9728), (151_936, 2560)),
        gated=((9728, 2560),),
        decode=((4, 128, 8),),
        prefill=((128, 32, 8, 0),),
        sides=((19_456, 2560),),
    )


def test_the_shapes_of_gemma() -> None:
    """Two regimes of attention, layers without k and v, and two sizes of MLP."""
    found = shapes("gemma-4-E2B-it")
    assert set(found.products) >= {(2560, 1536), (2048, 1536), (1536, 2048), (5120, 1536)}
    assert (1536, 256) in found.products
    assert found.gated == ((6144, 1536), (12_288, 1536))
    assert found.decode == ((8, 256, 1), (8, 512, 1))
    assert found.prefill == ((256, 8, 1, 512), (512, 8, 1, 0))


@pytest.mark.parametrize("name", ["qwen3-4b", "llama-3.2-3b-instruct", "gemma-4-E2B-it"])
def test_the_shipped_table_has_every_shape_of_the_full_models(name: str) -> None:
    entries, found = shipped()["NVIDIA H200"], shapes(name)
    keys = {
        kind: {"x".join(map(str, shape)) for shape in getattr(found, field)}
        for kind, field in {
            "matmul": "products", "whole": "products", "gated": "gated", "decode": "decode"
        }.items()
    }  # fmt: skip
    for kind, wanted in keys.items():
        assert wanted
        assert wanted <= entries[kind].keys()
    assert {str(one[0]) for one in found.prefill} <= entries["prefill"].keys()


def test_products_that_go_through_the_leaf_are_not_looked_up() -> None:
    """Of unpacked q, k, v and gate, up none is; nor is a layer with a bias."""
    module = tiny_qwen3(attention_bias=True)
    found = shapes_of(build_decoder(module), torch.device("cpu"))
    assert found.gated == ()
    assert found.products == ((64, 128), (512, 64))


@pytest.mark.parametrize("adapted", [False, True])
def test_4_bit_weights_are_looked_up_as_such(adapted: bool) -> None:
    """Packed or not, also as the bases of adapters: what TritonOps asks is what is tuned."""
    of: Callable[[int], Leaf] = (lambda n: side(four_bit(n))) if adapted else four_bit
    whole, alone = of(256), of(128)
    lookups = Lookups()
    x = torch.zeros(1, 64)
    lookups.gated(x, Packed(whole, (128, 128)), "silu")
    assert (lookups.nf4, lookups.nf4_sides) == ({}, {(256, 64): None})
    lookups.linear(x, alone)
    lookups.gated(x, Separate((of(96), of(96))), "silu")
    assert lookups.nf4 == {(128, 64): None, (96, 64): None}
    assert lookups.products == lookups.gated_products == lookups.sides == {}


def test_4_bit_weights_with_a_bias_are_not_looked_up() -> None:
    lookups = Lookups()
    lookups.linear(torch.zeros(1, 64), four_bit(128)._replace(bias=torch.zeros(128)))
    assert lookups.nf4 == {}


def four_bit(outputs: int) -> Nf4:
    """Return 4-bit weights of 64 inputs."""
    packed = torch.zeros(outputs, 32, dtype=torch.uint8)
    return Nf4(packed, torch.ones(outputs, 1), torch.tensor(CODE), torch.float32)


def side(leaf: Leaf) -> Adapted:
    """Return a leaf with a side path of two ranks."""
    return Adapted(leaf, torch.zeros(2, 64), torch.zeros(leaf.rows, 2), (1, 1))


class FakeTimer:
    """Times nothing: tiles take 1 us, cuBLAS 2."""

    closed = False

    def __init__(self, *given: Any) -> None:
        self.processor = Processor(132, 1)

    def __call__(self, trial: Trial) -> float | None:
        return 2.0 if trial.tile is None else None if trial.rows == 1 else 1.0

    def close(self) -> None:
        type(self).closed = True


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Make a CPU's model tunable."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tuning, "obstacle_of", lambda decoder, weight: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: DEVICE)
    monkeypatch.setattr(trials, "CudaTimer", FakeTimer)
    monkeypatch.setattr(FakeTimer, "closed", False)


@pytest.mark.usefixtures("pretended")
def test_tiles_are_measured_kept_and_used() -> None:
    module: nn.Module = model("qwen3-4b").module
    told: list[tuple[str, int, int]] = []
    (said,) = tuning.tune_module(module, lambda *line: told.append(line))
    assert FakeTimer.closed
    assert told[0][1:] == (0, 39)
    assert told[-1][1:] == (39, 39)
    assert "cuBLAS keeps 11 of 62 products" in said
    assert said.endswith(f"kept in {store.path_of(DEVICE)}")
    table = TileTable.of_device(DEVICE)
    assert "tuned here on 20" in table.notices[0]
    assert table.matmul(1, 2560, 4096, split=True) is None
    assert table.matmul(64, 2560, 4096, split=True) is not None
    assert table.gated(64, 9728, 2560) is not None


def test_an_engine_says_where_its_tiles_came_from() -> None:
    with fast_path(TileTable({}, ("tuned tiles: of a test",))):
        setup = set_up(model("qwen3-4b"), EngineConfig(max_batch_size=1, max_seq_length=64))
    assert "tuned tiles: of a test" in setup.notices


@pytest.mark.usefixtures("pretended")
def test_where_tiles_cannot_be_kept_nothing_is_measured(tmp_path: Any) -> None:
    (tmp_path / "flexinfer").write_text("a file")
    untouched = partial(pytest.fail, "measured")
    with patch.object(trials, "CudaTimer", untouched), pytest.raises(WriteFailed):
        tuning.tune_module(model("qwen3-4b").module)


def test_a_cpu_has_nothing_to_tune() -> None:
    with pytest.raises(EnvironmentUnfit, match=r"--tune .*it needs a CUDA device"):
        tuning.tune_module(tiny_llama())
