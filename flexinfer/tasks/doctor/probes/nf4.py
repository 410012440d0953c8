"""Quantise a weight to NF4 and multiply by it, against the weight it stands for.

Prints {"version"}, then {"device", "error" (relative to the largest output), "distance" (of the
quantised weight from the original, relative)}.
"""

from __future__ import annotations

import json

import bitsandbytes
import torch
from bitsandbytes import functional

print(json.dumps({"version": bitsandbytes.__version__}), flush=True)


def main() -> None:
    """Multiply [4, 256] by NF4 [128, 256], block 64, double quantisation."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(4, 256, generator=draw).to(device, torch.bfloat16)
    weight = torch.randn(128, 256, generator=draw).to(device, torch.bfloat16)
    packed, state = functional.quantize_4bit(
        weight, blocksize=64, compress_statistics=True, quant_type="nf4"
    )
    meant = functional.dequantize_4bit(packed, state)
    exact = x.float() @ meant.float().T
    out = bitsandbytes.matmul_4bit(x, packed.t(), quant_state=state).float()
    error = float((out - exact).abs().max() / exact.abs().max())
    distance = float((meant - weight).float().norm() / weight.float().norm())
    print(json.dumps({"device": device, "error": error, "distance": distance}))


if __name__ == "__main__":
    main()
