"""Capture a product in a CUDA graph, change its input, replay. Prints {"error", "replay_us"}."""

from __future__ import annotations

import json
import time

import torch

REPLAYS = 20


def main() -> None:
    """Capture after a warm-up that creates the library handles."""
    x, w = torch.zeros(8, 256, device="cuda"), torch.randn(256, 256, device="cuda")
    x @ w
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = x @ w
    x.copy_(torch.randn_like(x))
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    replay_us = (time.perf_counter() - began) / REPLAYS * 1e6
    exact = x.double() @ w.double()
    error = float((out.double() - exact).abs().max() / exact.abs().max())
    print(json.dumps({"error": error, "replay_us": replay_us}))


if __name__ == "__main__":
    main()
