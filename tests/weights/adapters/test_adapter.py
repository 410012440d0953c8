"""An adapter in memory: its digest, its notices, broken files, and the random one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flexinfer.errors import UsageError
from flexinfer.weights.adapters.adapter import Adapter, Pair
from flexinfer.weights.adapters.check import peaks
from flexinfer.weights.adapters.folder import read_folder
from flexinfer.weights.adapters.live import read_live
from flexinfer.weights.adapters.random_adapter import random_adapter
from tests.support.tiny import tiny_gemma4, tiny_qwen3
from tests.weights.adapters.cases import WEIGHTS, adapted, biased_llama, edit, save, targets_of

TARGETS = targets_of(tiny_qwen3())
HERE = "base_model.model.model.layers.2.mlp.up_proj"
NOOP = "adapter is a no-op: every delta is zero"
Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(adapted(tiny_qwen3()), tmp_path)


def made(**pairs: Pair) -> Adapter:
    return Adapter("a", pairs)


def pair(seed: int = 0, dtype: torch.dtype = torch.float32) -> Pair:
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(2, 6, generator=generator), torch.randn(4, 2, generator=generator)
    return Pair(a.to(dtype), b.to(dtype), 2.0)


def test_the_digest_does_not_see_order_layout_name_or_notices() -> None:
    adapter = made(x=pair(0), y=pair(1))
    first = adapter.sha()
    assert made(y=pair(1), x=pair(0)).sha() == first
    assert replace(adapter, name="b", notices=("n",)).sha() == first
    turned = pair(0)._replace(a=pair(0).a.t().contiguous().t())
    assert made(x=turned, y=pair(1)).sha() == first


def test_the_digest_sees_names_values_scales_shapes_dtypes_and_biases() -> None:
    zeros = Pair(torch.zeros(2, 6), torch.zeros(4, 2), 2.0)
    others = [
        made(x=zeros),
        made(y=zeros),
        made(x=zeros._replace(scale=2.5)),
        made(x=zeros._replace(bias=torch.zeros(4))),
        made(x=zeros._replace(a=torch.zeros(6, 2))),
        made(x=zeros._replace(a=zeros.a.bfloat16())),
        made(x=zeros._replace(a=zeros.a.half())),
        made(x=pair()),
        made(x=pair(), y=zeros),
    ]
    flipped = pair()
    flipped.b[3, 1] = -flipped.b[3, 1]
    assert len({a.sha() for a in [*others, made(x=flipped)]}) == len(others) + 1


def test_the_rank_is_the_largest() -> None:
    wide = Pair(torch.zeros(5, 6), torch.zeros(4, 5), 1.0)
    assert (made(x=pair(), y=wide).rank, made().rank) == (5, 0)


def test_the_summary_counts_modules_ranks_and_scales(folder: Path) -> None:
    assert read_folder(folder, TARGETS).notices == (
        "adapter: 28 of 28 modules matched, rank 4, scale 1.5",
    )
    fewer = {name: shape for name, shape in TARGETS.items() if "layers.3" not in name}
    lines = read_folder(folder, fewer).notices
    assert lines[0] == "adapter: 21 of 28 modules matched, rank 4, scale 1.5"
    assert lines[1].startswith("adapter: 7 modules are not in the text model and are left out: ")
    assert lines[1].endswith("layers.3.mlp.up_proj and 4 more")


def test_an_adapter_without_effect_is_noted(tmp_path: Path) -> None:
    """A fresh one has a B of zeros; a scale or an A of zeros does the same."""

    def zero(part: str) -> Change:
        return lambda held: {k: t * (0 if part in k else 1) for k, t in held.items()}

    folder = save(adapted(tiny_qwen3()), tmp_path)
    assert NOOP not in read_folder(folder, TARGETS).notices
    assert NOOP in read_folder(edit(folder, {"lora_alpha": 0}), TARGETS).notices
    assert NOOP not in read_folder(edit(folder, {"lora_alpha": 1}), TARGETS).notices
    assert NOOP not in read_folder(edit(folder, tensors=zero("0.mlp.up_proj")), TARGETS).notices
    assert NOOP in read_folder(edit(folder, tensors=zero("lora_B")), TARGETS).notices
    live = adapted(tiny_qwen3())
    with torch.no_grad():
        for name, parameter in live.named_parameters():
            parameter.mul_(0 if "lora_A" in name else 1)
    assert NOOP in read_live(live, TARGETS).notices


def test_a_trained_bias_is_an_effect() -> None:
    base = biased_llama()
    model = adapted(base, target_modules=["q_proj"], bias="lora_only")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(0 if "lora_B" in name else 1)
    assert NOOP not in read_live(model, targets_of(base)).notices


def put(part: str, tensor: Tensor) -> Change:
    return lambda held: held | {f"{HERE}.lora_{part}.weight": tensor}


def drop(part: str) -> Change:
    return lambda held: {k: t for k, t in held.items() if k != f"{HERE}.lora_{part}.weight"}


def spoil(value: float) -> Change:
    def change(held: dict[str, Tensor]) -> dict[str, Tensor]:
        held[f"{HERE}.lora_B.weight"][5, 1] = value
        return held

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop("A"), "layers.2.mlp.up_proj has no lora_A"),
        (drop("B"), "layers.2.mlp.up_proj has no lora_B"),
        (spoil(float("nan")), "layers.2.mlp.up_proj holds NaN or infinite"),
        (spoil(float("inf")), "layers.2.mlp.up_proj holds NaN or infinite"),
        (spoil(float("-inf")), "layers.2.mlp.up_proj holds NaN or infinite"),
        (put("A", torch.zeros(0, 64)), "layers.2.mlp.up_proj has rank 0"),
        (put("A", torch.zeros(5, 64)), "layers.2.mlp.up_proj has rank 5; adapter_config.json says"),
        (put("A", torch.zeros(())), "layers.2.mlp.up_proj has rank 0"),
        (put("A", torch.zeros(4, 32)), "lora_A of layers.2.mlp.up_proj is [4, 32], not [4, 64]"),
        (put("A", torch.zeros(4, 64, 1)), "lora_A of layers.2.mlp.up_proj is [4, 64, 1], not"),
        (put("B", torch.zeros(64, 4)), "lora_B of layers.2.mlp.up_proj is [64, 4], not [128, 4]"),
        (put("B", torch.zeros(128, 3)), "lora_B of layers.2.mlp.up_proj is [128, 3], not"),
        (put("B", torch.zeros(128, 4, dtype=torch.int8)), "lora_B of layers.2.mlp.up_proj is int8"),
        (put("B", torch.zeros(128, 4, dtype=torch.float64)), "up_proj is float64"),
        (
            put("B", torch.zeros(128, 4).to(torch.float8_e4m3fn)),
            "lora_B of layers.2.mlp.up_proj is float8_e4m3fn",
        ),
        (lambda held: {}, "it holds no LoRA tensors"),
        (
            lambda held: held | {f"{HERE.removeprefix('base_model.model.')}.lora_A.weight":
                                 torch.zeros(4, 64)},
            "twice",
        ),
        (
            lambda held: held | {f"{HERE[len('base_model.model.model.'):]}.lora_{x}.weight":
                                 torch.zeros(s) for x, s in (("A", (4, 64)), ("B", (128, 4)))},
            "it holds layers.2.mlp.up_proj twice",
        ),
    ],
)  # fmt: skip
def test_broken_tensors_are_refused_in_one_line(change: Change, said: str, folder: Path) -> None:
    edit(folder, tensors=change)
    with pytest.raises(UsageError) as error:
        read_folder(folder, TARGETS)
    assert said in error.value.message
    assert str(folder) in error.value.message
    assert "\n" not in f"{error.value.message}{error.value.hint}"


def test_a_bias_of_a_wrong_shape_or_with_nan_is_refused(tmp_path: Path) -> None:
    base = biased_llama()
    folder = save(adapted(base, target_modules=["q_proj"], bias="lora_only"), tmp_path)
    key = "base_model.model.model.layers.0.self_attn.q_proj.base_layer.bias"
    for tensor, said in (
        (torch.ones(3), "the bias of layers.0.self_attn.q_proj is [3], not [64]"),
        (torch.full((64,), float("nan")), "layers.0.self_attn.q_proj holds NaN"),
    ):
        edit(folder, tensors=lambda held, t=tensor: held | {key: t})
        with pytest.raises(UsageError) as error:
            read_folder(folder, targets_of(base))
        assert said in error.value.message


def cut(path: Path, at: int) -> None:
    path.write_bytes(path.read_bytes()[:at])


@pytest.mark.parametrize(
    ("file", "spoil_file", "said"),
    [
        (WEIGHTS, lambda path: cut(path, -100), "is no sound safetensors file"),
        (WEIGHTS, lambda path: cut(path, 20), "is no sound safetensors file"),
        (WEIGHTS, lambda path: cut(path, 0), "is no sound safetensors file"),
        (WEIGHTS, lambda path: path.unlink(), "holds no adapter_model.safetensors"),
        ("adapter_config.json", lambda path: path.unlink(), "has no adapter_config.json"),
        ("adapter_config.json", lambda path: path.write_text("[1]"), "holds no JSON object"),
        ("adapter_config.json", lambda path: cut(path, 40), "cannot be read"),
        ("adapter_config.json", lambda path: path.write_bytes(b"\xff\xfe"), "cannot be read"),
        ("adapter_config.json", lambda path: path.write_text("{}"), "no peft_type"),
    ],
)
def test_broken_files_are_refused_in_one_line(
    file: str, spoil_file: Callable[[Path], object], said: str, folder: Path
) -> None:
    spoil_file(folder / file)
    with pytest.raises(UsageError) as error:
        read_folder(folder, TARGETS)
    assert said in error.value.message
    assert str(folder) in error.value.message
    assert "\n" not in f"{error.value.message}{error.value.hint}"


class Bad:
    """An object whose unpickling would run code."""

    def __reduce__(self) -> tuple[object, ...]:
        return (exec, ("raise SystemExit(7)",))


@pytest.mark.parametrize("content", [{"x": Bad()}, [torch.ones(1)], {"x": 3}, None])
def test_a_broken_pickle_is_refused_and_runs_nothing(content: object, folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    path = folder / "adapter_model.bin"
    if content is None:
        path.write_bytes(b"no pickle")
    else:
        torch.save(content, path)
    with pytest.raises(UsageError) as error:
        read_folder(folder, TARGETS)
    assert str(path) in error.value.message
    assert "\n" not in error.value.message


def test_a_live_adapter_with_broken_values_is_refused() -> None:
    model = adapted(tiny_qwen3())
    layer = model.get_submodule(HERE)
    with torch.no_grad():
        layer.lora_A["default"].weight[0, 0] = float("nan")
    with pytest.raises(UsageError, match=r"layers\.2\.mlp\.up_proj holds NaN"):
        read_live(model, TARGETS)
    layer.lora_A["default"].to("meta")
    with pytest.raises(UsageError, match=r"lora_A of layers\.2\.mlp\.up_proj has no values"):
        read_live(model, TARGETS)


def test_peaks_are_largest_magnitudes_whatever_the_mix_of_dtypes() -> None:
    tensors = [torch.tensor([1.0, -3.0]), torch.tensor([2.0]).half(), torch.zeros(2, 2)]
    tensors.append(torch.tensor([float("nan"), 1.0]).bfloat16())
    found = peaks(tensors)
    assert found[:3] == [3.0, 2.0, 0.0]
    assert found[3] != found[3]
    assert peaks([]) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_random_adapter_is_seeded_non_zero_and_small(dtype: torch.dtype) -> None:
    shapes = targets_of(tiny_gemma4())
    adapter = random_adapter(shapes, 8, 3, dtype, torch.device("cpu"))
    assert adapter.pairs.keys() == shapes.keys()
    assert (adapter.name, adapter.rank) == ("random:8", 8)
    assert adapter.notices == (
        f"adapter: random, seed 3, on {len(shapes)} modules, rank 8, scale 2",
    )
    for name, (a, b, scale, bias) in adapter.pairs.items():
        rows, columns = shapes[name]
        assert (a.shape, b.shape, bias) == ((8, columns), (rows, 8), None)
        assert a.dtype == b.dtype == dtype
        assert b.any()
        strength = (scale * b.float() @ a.float()).std() * columns**0.5
        assert 0.005 < strength < 0.02
    again = random_adapter(shapes, 8, 3, dtype, torch.device("cpu"))
    other = random_adapter(shapes, 8, 4, dtype, torch.device("cpu"))
    assert adapter.sha() == again.sha() != other.sha()


def test_a_modules_random_pair_does_not_depend_on_the_others() -> None:
    cpu, name = torch.device("cpu"), "layers.1.mlp.up_proj"
    whole = random_adapter(TARGETS, 4, 0, torch.float32, cpu)
    alone = random_adapter({name: TARGETS[name]}, 4, 0, torch.float32, cpu)
    assert torch.equal(whole.pairs[name].a, alone.pairs[name].a)
    first, second = whole.pairs[name], whole.pairs["layers.2.mlp.up_proj"]
    assert not torch.equal(first.a, second.a)


def test_a_random_rank_must_be_positive() -> None:
    with pytest.raises(UsageError, match="random:0: the rank must be 1 or more"):
        random_adapter(TARGETS, 0, 0, torch.float32, torch.device("cpu"))


def test_reading_a_folder_imports_neither_peft_nor_transformers(folder: Path) -> None:
    code = (
        "import sys, json, pathlib; from flexinfer.weights.adapters.folder import read_folder\n"
        f"targets = json.loads({json.dumps(json.dumps(TARGETS))})\n"
        f"read_folder(pathlib.Path({str(folder)!r}), {{k: tuple(v) for k, v in targets.items()}})\n"
        "print([m for m in ('peft', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
