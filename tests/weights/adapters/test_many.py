"""Many small tensors at once: as one by one, whatever their dtypes and strides."""

from __future__ import annotations

from itertools import pairwise

import torch

from flexinfer.weights.adapters.many import copies_on, copy_all, scaled_all

CPU = torch.device("cpu")


def mixed() -> list[torch.Tensor]:
    """Return tensors of several dtypes, dense, strided, expanded and empty."""
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(4, 6, generator=draw), torch.randn(6, 8, generator=draw)
    return [a, b.T, b[:, ::2], a.bfloat16(), a.half()[1:], a[:1].expand(3, 6), a[:0]]


def test_copies_are_equal_and_share_nothing() -> None:
    given = mixed()
    made = copies_on(CPU, given)
    for one, other in zip(made, given, strict=True):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype
        assert one.numel() == 0 or one.data_ptr() != other.data_ptr()
        assert not one.requires_grad
    made[0].zero_()
    assert given[0].any()


def test_copies_of_a_dtype_lie_in_one_block() -> None:
    given = mixed()
    made = copies_on(CPU, given)
    blocks = {one.untyped_storage().data_ptr() for one in made if one.numel()}
    assert len(blocks) == len({one.dtype for one in given}) == 3
    assert all(one.is_contiguous() for one in made)
    ends = sorted((one.data_ptr(), one.data_ptr() + one.nbytes) for one in made if one.numel())
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))


def test_copying_casts_as_a_copy_does() -> None:
    sources = mixed()
    targets = [torch.zeros(source.shape, dtype=torch.bfloat16) for source in sources]
    targets[0] = torch.zeros(4, 12, dtype=torch.bfloat16)[:, 3:9]
    copy_all(targets, sources)
    assert all(torch.equal(t, s.bfloat16()) for t, s in zip(targets, sources, strict=True))
    copy_all([], [])


def test_scaled() -> None:
    factors = [(tensor.float(), 0.3 * (i + 1)) for i, tensor in enumerate(mixed())]
    assert all(
        torch.equal(one, tensor * scale)
        for one, (tensor, scale) in zip(scaled_all(factors), factors, strict=True)
    )
    assert scaled_all([]) == []


def test_what_is_scaled_in_16_bits_is_rounded_once() -> None:
    b = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.bfloat16, torch.float16):
        (made,) = scaled_all([(b.to(dtype), 0.3)])
        assert torch.equal(made, (b.to(dtype).float() * 0.3).to(dtype))
        twice = b.to(dtype) * torch.tensor(0.3, dtype=dtype)
        assert not torch.equal(made, twice), "a scale rounded first would show"
