"""A plan for a GPU that is not here: what is needed, held against nothing."""

from __future__ import annotations

import json
import re

import pytest
import torch

from flexinfer.config import EngineConfig, ModelOptions
from flexinfer.core.sizes import human
from flexinfer.errors import EnvironmentUnfit
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.plan.model import outline
from flexinfer.tasks.grpo.plan.run import plan_run, render
from tests.tasks.grpo.plan.test_plan import GIB, MATH


def test_a_gpu_that_is_not_here_is_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    asked = ModelOptions(model="qwen3-4b", device="cuda")
    plan = plan_run(asked, EngineConfig(), GrpoConfig(**MATH))
    assert (plan.device, plan.dtype, plan.kv.page) == ("cuda", "bfloat16", 32)
    assert plan.verdict == (
        f"needs {human(plan.wanted)}, with KV for all 64 sequences of 1024 tokens; "
        "there is no CUDA device here to hold it against"
    )
    assert (plan.exit_code, plan.hints) == (0, ())
    assert "device: cuda (planned for: none is here)" in plan.notices
    document = json.loads(render(plan, as_json=True))
    assert (document["available"], document["fits"]) == (None, None)
    small = plan_run(asked, EngineConfig(kv_memory=2**12), GrpoConfig(**MATH))
    assert (small.exit_code, small.hints) == (4, ("raise --kv-memory",))
    held = plan_run(asked, EngineConfig(), GrpoConfig(**MATH), available=8 * GIB)
    assert held.exit_code == 4
    open_ = GrpoConfig(**MATH | {"gradient_checkpointing": None})
    told = plan_run(asked, EngineConfig(max_batch_size=2), open_, held_out=9, widen=True)
    assert told.kv.sequences == 9
    (line,) = (line for line in told.notices if line.startswith("gradient checkpointing"))
    assert re.fullmatch(r".*: off \(with activations kept .* are needed, else .* GiB\)", line)
    with pytest.raises(EnvironmentUnfit, match="no usable CUDA device"):
        outline(asked)
