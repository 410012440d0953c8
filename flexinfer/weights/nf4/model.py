"""A model's linears as bitsandbytes Linear4bit: quantised while loading, or stored that way.

What comes out is what transformers makes of the same weights, so that a trainer can put LoRA on it
and its own forward is the oracle.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch
from torch import nn

from flexinfer.errors import UsageError
from flexinfer.kernels.nf4 import BLOCK
from flexinfer.weights.fill import target_name
from flexinfer.weights.nf4.config import Scheme, stored_scheme
from flexinfer.weights.nf4.library import library

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from flexinfer.weights.sources import Source

ON_THE_FLY = Scheme(double=True, skip=())


def prepare(
    model: PreTrainedModel, source: Source, wanted: bool, dtype: torch.dtype
) -> tuple[str, ...]:
    """Make linears of a model without memory 4-bit, where `wanted` or stored so; return notices.

    `dtype` is what they compute in. Raises UsageError where the source has no such weights,
    EnvironmentUnfit without bitsandbytes.
    """
    scheme, stored = stored_scheme(source.config, source.name), _stored(source)
    if scheme is None and not stored and not wanted:
        return ()
    if source.dequantised:
        raise UsageError(
            "--load-in-4bit does not take a .gguf file, which is quantised in its own way",
            hint="leave it out, or give the checkpoint as a folder or hub id",
        )
    names = _chosen(model, source, scheme, stored)
    swap(model, names, (scheme or ON_THE_FLY).double, dtype)
    how = "quantised while loading" if scheme is None and not stored else "as stored"
    return (f"4-bit: {len(names)} linear maps as NF4, {how}",)


def _stored(source: Source) -> set[str]:
    """Return the linears that a checkpoint stores in 4 bits, by their names in a text model."""
    names = (name for name, stored in source.stored.items() if stored.parts)
    return {target_name(name).removesuffix(".weight") for name in names}


def _chosen(
    model: PreTrainedModel, source: Source, scheme: Scheme | None, stored: Collection[str]
) -> list[str]:
    """Return which linears become 4-bit: those stored so, else all that may."""
    linears = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    modules = {name for name, _ in model.named_modules()}
    if odd := sorted(name for name in stored if name in modules and name not in linears):
        raise UsageError(f"{source.name} stores {odd[0]} in 4 bits, which is no linear map")
    if stored:
        return [name for name in sorted(stored) if name in linears]
    if scheme is not None and source.stored:
        raise UsageError(
            f"{source.name}: config.json says NF4, but no weight is stored so",
            hint="leave quantization_config out of it and give --load-in-4bit",
        )
    scheme, names = scheme or ON_THE_FLY, eligible(model)
    scheme.check(names, source.name)
    return [name for name in names if not scheme.keeps(name)]


def eligible(model: PreTrainedModel) -> list[str]:
    """Return all linears but the head whose rows hold whole blocks."""
    head = model.get_output_embeddings()
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head and module.in_features % BLOCK == 0
    ]


def swap(model: PreTrainedModel, names: Collection[str], double: bool, dtype: torch.dtype) -> None:
    """Put a Linear4bit without memory in the place of every linear named."""
    for name in names:
        old = model.get_submodule(name)
        assert isinstance(old, nn.Linear)
        new = library().nn.Linear4bit(
            old.in_features, old.out_features, old.bias is not None, compute_dtype=dtype,
            compress_statistics=double, quant_type="nf4", device="meta",
        )  # fmt: skip
        # Otherwise its first forward on such a CPU rewrites the weight in an order of its own.
        new.support_avx512bf16_for_cpu = False
        model.set_submodule(name, new.eval())
    _announce(model, set(names), double, dtype)


def _announce(
    model: PreTrainedModel, names: Collection[str], double: bool, dtype: torch.dtype
) -> None:
    """Tell transformers, and through it PEFT and trainers, what the model is."""
    from transformers import BitsAndBytesConfig
    from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer

    kept = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and n not in names]
    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double,
        bnb_4bit_compute_dtype=dtype, llm_int8_skip_modules=kept,
    )  # fmt: skip
    quantizer = Bnb4BitHfQuantizer(config, pre_quantized=True)
    model.hf_quantizer, model.is_quantized = quantizer, True
    model.quantization_method = config.quant_method
    quantizer.postprocess_model(model)
