"""Weights on a CUDA device: drawn and copied there, once; the digest is that of the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flexinfer.config import ModelOptions
from flexinfer.weights.digest import digest
from flexinfer.weights.load import load
from tests.weights.folders import save_folder

pytestmark = pytest.mark.gpu


def test_dummy_weights_are_drawn_on_the_device_and_once() -> None:
    torch.cuda.reset_peak_memory_stats()
    before, states = torch.cuda.memory_allocated(), torch.cuda.get_rng_state_all()
    loaded = load(ModelOptions(model="qwen3-4b", load_format="dummy", device="cuda"))
    size = sum(p.numel() * p.element_size() for p in loaded.module.parameters())
    assert loaded.module.dtype is torch.bfloat16
    assert size <= torch.cuda.max_memory_allocated() - before < 1.02 * size
    assert torch.cuda.max_memory_reserved() < 1.1 * (before + size)
    for old, new in zip(states, torch.cuda.get_rng_state_all(), strict=True):
        assert torch.equal(old, new)


def test_the_logits_of_the_whole_depth_are_neither_flat_nor_chaotic() -> None:
    ids = torch.randint(5, 250_000, (1, 64), generator=torch.Generator().manual_seed(0)).cuda()
    options = {"model": "gemma-4-E2B-it", "load_format": "dummy", "device": "cuda"}
    coarse = load(ModelOptions(**options)).module
    fine = load(ModelOptions(**options, dtype="float32")).module
    with torch.no_grad():
        weights = coarse.state_dict()
        for name, tensor in fine.state_dict().items():
            tensor.copy_(weights[name])
        low, high = coarse(ids).logits.float(), fine(ids).logits
    assert 2.0 < float(high.std()) < 3.0
    assert float((low - high).norm() / high.norm()) < 0.04
    assert float((low.argmax(-1) == high.argmax(-1)).float().mean()) > 0.85


def test_a_folder_is_copied_to_the_device_and_hashes_as_on_the_cpu(tmp_path: Path) -> None:
    folder = str(save_folder("gemma4", tmp_path))
    options = {"model": folder, "dtype": "float32"}
    here = load(ModelOptions(**options, device="cpu")).module
    there = load(ModelOptions(**options, device="cuda")).module
    assert all(tensor.is_cuda for tensor in there.state_dict().values())
    assert all(buffer.is_cuda for buffer in there.buffers())
    assert digest(here) == digest(there)
