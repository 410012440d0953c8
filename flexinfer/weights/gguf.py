"""Local `.gguf` files, read and dequantised by transformers; what it cannot read is refused."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flexinfer.config import Report, quiet
from flexinfer.errors import EnvironmentUnfit, UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

_MAGIC = b"GGUF"
_HEADER = 1 << 26
"""Bytes at the start that hold all metadata and tensor names, with room to spare."""
_SCALED_ROPE = b"rope_freqs.weight"
"""A tensor of Llama 3.x files: its rope scaling, which transformers leaves out without a word."""


def read_config(path: Path) -> dict[str, Any]:
    """Return the file's metadata as a config.json would say it; raises UsageError if it cannot."""
    with path.open("rb") as file:
        header = file.read(_HEADER)
    if not header.startswith(_MAGIC):
        raise UsageError(f"{path} is no GGUF file", hint="download it again")
    from transformers import AutoConfig

    with _reading(path):
        config: dict[str, Any] = AutoConfig.from_pretrained(
            path.parent, gguf_file=path.name
        ).to_dict()
    rope = config.get("rope_parameters") or {}
    if _SCALED_ROPE in header and rope.get("rope_type") == "default":
        raise UsageError(
            f"{path} scales its rope ({_SCALED_ROPE.decode()}), which transformers does not read",
            hint="give the checkpoint as a folder or hub id",
        )
    return config


def read_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer and chat template that the file carries."""
    from transformers import AutoTokenizer

    with _reading(path):
        tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(
            path.parent, gguf_file=path.name
        )
    return tokenizer


@torch.no_grad()
def fill(model: PreTrainedModel, path: Path, report: Report = quiet) -> None:
    """Copy the dequantised weights into `model`, letting go of each as it is copied.

    Raises UsageError where tensors are missing or of a kind that transformers does not know.
    """
    report("dequantising", 0, 0)
    with _reading(path):
        source, info = type(model).from_pretrained(
            path.parent,
            gguf_file=path.name,
            config=copy.deepcopy(model.config),
            dtype=torch.float32,
            output_loading_info=True,
        )
    if missing := sorted(info["missing_keys"]):
        raise UsageError(f"{path} lacks {len(missing)} tensors: {', '.join(missing[:3])}")
    targets = model.state_dict()
    tensors = [*source.named_parameters(), *source.named_buffers()]
    for done, (name, tensor) in enumerate(tensors):
        if name in targets:
            targets[name].copy_(tensor)
            tensor.data = torch.empty(0)
        report("loading weights", done + 1, len(tensors))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn whatever transformers says of a file into one line, and keep its bars off stderr."""
    try:
        with redirect_stderr(io.StringIO()):
            yield
    except ImportError as error:
        raise EnvironmentUnfit(
            f"{path} needs a package that transformers cannot import: {_line(error)}",
            hint="pip install --upgrade gguf transformers",
        ) from error
    except Exception as error:
        cure = None if _is_whole(path) else "download it again"
        line = f"{path} cannot be read by transformers: {_line(error)}"
        raise UsageError(line, hint=cure) from error


def _is_whole(path: Path) -> bool:
    """Whether the file is sound by its own format's reader, so that another copy would not help."""
    from gguf import GGUFReader

    try:
        GGUFReader(path)
    except Exception:  # the reader raises whatever its parsing runs into
        return False
    return True


def _line(error: Exception) -> str:
    """Squeeze an exception into one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
