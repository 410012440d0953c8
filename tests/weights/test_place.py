"""Device, dtype and memory: what is chosen and what is said about it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest
import torch

from flexinfer.errors import EnvironmentUnfit, NotEnoughMemory
from flexinfer.weights import families, place
from flexinfer.weights.families import check_transformers

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("wanted", "device", "stored", "dtype", "part"),
    [
        ("auto", CUDA, torch.float32, torch.bfloat16, "default on CUDA"),
        ("auto", CPU, torch.float32, torch.float32, "float32"),
        ("auto", CPU, torch.bfloat16, torch.float32, "stored as bfloat16"),
        ("auto", CPU, torch.float16, torch.float32, "stored as float16"),
        ("auto", CPU, None, torch.float32, "float32"),
        ("bfloat16", CPU, torch.float32, torch.bfloat16, "as asked"),
        ("float16", CUDA, torch.bfloat16, torch.float16, "as asked"),
        ("float32", CUDA, torch.bfloat16, torch.float32, "as asked"),
    ],
)
def test_the_dtype_follows_wish_device_and_checkpoint(
    wanted: str, device: torch.device, stored: torch.dtype, dtype: torch.dtype, part: str
) -> None:
    chosen, notice = place.choose_dtype(wanted, device, stored)
    assert chosen is dtype
    assert notice.startswith("dtype: ")
    assert part in notice


def test_without_cuda_auto_is_the_cpu_and_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert place.choose_device("auto") == (CPU, "device: cpu (there is no CUDA device)")
    with pytest.raises(EnvironmentUnfit) as caught:
        place.choose_device("cuda")
    assert (caught.value.exit_code, "doctor" in str(caught.value.hint)) == (3, True)


def test_with_cuda_auto_takes_it_and_cpu_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    assert place.choose_device("auto") == (CUDA, "device: cuda:0 (Some GPU)")
    assert place.choose_device("cpu") == (CPU, "device: cpu (as asked)")


def test_the_free_memory_of_a_cpu_is_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place.available_bytes(CPU) > 2**20
    monkeypatch.setattr(place, "host_memory", lambda: 12345)
    assert place.available_bytes(CPU) == 12345


def test_weights_that_do_not_fit_are_refused_with_both_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(place, "available_bytes", lambda device: 2**30)
    place.require_memory(2**30, CPU, "m")
    with pytest.raises(NotEnoughMemory, match=r"need 2\.5 GiB, cpu has 1\.0 GiB free") as caught:
        place.require_memory(5 * 2**29, CPU, "m")
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("version", ["4.57.1", "5.4.0", "5.5.0", "5.5.1", "5.5.1.post1", "5.5"])
def test_an_old_transformers_is_refused_with_both_versions(version: str) -> None:
    with pytest.raises(EnvironmentUnfit, match=rf"{version} is too old.*5\.5\.2"):
        check_transformers(version)


@pytest.mark.parametrize("version", ["5.5.2", "5.5.2.dev0", "5.6.0", "5.24.0", "6.0.0.dev0"])
def test_a_new_transformers_is_taken(version: str) -> None:
    check_transformers(version)


def test_a_missing_transformers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(families, "version", absent)
    with pytest.raises(EnvironmentUnfit, match="not installed"):
        check_transformers()
