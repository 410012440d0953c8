"""The options of the engine: what the command line gives, and the settings it becomes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast

from flexinfer import config
from flexinfer.cli.arguments.flags import option
from flexinfer.cli.arguments.options import ENGINE, choices
from flexinfer.config import EngineConfig, parse_size
from flexinfer.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class EngineFlags:
    """How the engine runs; what is not given is decided from the work and the device, and said."""

    max_batch_size: Annotated[
        str | None,
        option(
            "--max-batch-size",
            panel=ENGINE,
            metavar="N",
            help="Sequences at once (default: 64; bench: a round's, up to 256; 1,8,32 sweeps).",
        ),
    ] = None
    max_seq_length: Annotated[
        str | None,
        option(
            "--max-seq-length",
            panel=ENGINE,
            metavar="SIZE",
            help="Prompt and new tokens of one sequence (default: what the work needs).",
        ),
    ] = None
    page_size: Annotated[
        int | None,
        option(
            "--page-size",
            panel=ENGINE,
            metavar="N",
            help="Tokens in a KV page (default: 32, on a CPU 16).",
        ),
    ] = None
    kv_memory: Annotated[
        str | None,
        option(
            "--kv-memory",
            panel=ENGINE,
            metavar="SIZE",
            help="Bytes for the KV pages, reserved ones too (default: what the work needs).",
        ),
    ] = None
    prefill_tokens: Annotated[
        str | None,
        option(
            "--prefill-tokens",
            panel=ENGINE,
            metavar="SIZE",
            help=f"Token budget of a prefill step (default: {EngineConfig.prefill_tokens}; "
            "bench's hf-cb and vllm: their own).",
        ),
    ] = None
    cuda_graphs: Annotated[
        bool | None,
        option(
            "--cuda-graphs/--no-cuda-graphs",
            "--capture-cudagraph/--no-capture-cudagraph",
            panel=ENGINE,
            help="Decode in CUDA graphs (default: on a CUDA device).",
        ),
    ] = None
    attention: Annotated[
        str,
        option(
            "--attention",
            panel=ENGINE,
            metavar=choices(config.AttentionBackend),
            help="The back end; auto says which and why.",
        ),
    ] = "auto"
    fa4_prefill: Annotated[
        bool | None,
        option(
            "--fa4-prefill/--no-fa4-prefill",
            panel=ENGINE,
            help="Prefill with FlashAttention 4 (default: where measured faster).",
        ),
    ] = None
    prefill_kernel_options: Annotated[
        str | None,
        option(
            "--prefill-kernel-options",
            panel=ENGINE,
            metavar="JSON",
            help='Such as {"BLOCK_M": 64}.',
        ),
    ] = None
    decode_kernel_options: Annotated[
        str | None,
        option(
            "--decode-kernel-options",
            panel=ENGINE,
            metavar="JSON",
            help='Such as {"num_warps": 4}.',
        ),
    ] = None
    batch_invariant: Annotated[
        bool,
        option("--batch-invariant", panel=ENGINE, help="The same bits whatever the batch."),
    ] = False
    seed: Annotated[
        int,
        option(
            "--seed",
            panel=ENGINE,
            metavar="N",
            help="Of sampling, dummy weights and random adapters.",
        ),
    ] = 0

    def config(self, max_batch_size: int | None = None) -> EngineConfig:
        """Return the checked settings, for this batch size or the one given; raises UsageError."""
        values: dict[str, Any] = vars(self) | {
            "prefill_kernel_options": _kernel_options(
                self.prefill_kernel_options, "--prefill-kernel-options"
            ),
            "decode_kernel_options": _kernel_options(
                self.decode_kernel_options, "--decode-kernel-options"
            ),
        }
        size = values.pop("max_batch_size")
        if size is not None or max_batch_size is not None:
            values["max_batch_size"] = max_batch_size or _one_size(size, "--max-batch-size")
        for name in ("max_seq_length", "kv_memory", "prefill_tokens"):
            text = cast("str | None", values.pop(name))
            if text is not None:
                values[name] = parse_size(text, "--" + name.replace("_", "-"))
        return EngineConfig(**values)


def _one_size(text: str, flag: str) -> int:
    """Read a size where a list is refused; raises UsageError."""
    if "," in text:
        raise UsageError(f"{flag} {text!r} is a list", hint="only bench sweeps; give one number")
    return parse_size(text, flag)


def _kernel_options(text: str | None, flag: str) -> Mapping[str, Any]:
    """Read a JSON object of known names, {} where nothing was given; raises UsageError."""
    from flexinfer.attention.options import check_options

    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{flag} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{flag} is not a JSON object", hint="write it like '{\"num_warps\": 4}'")
    check_options(flag, value)
    return value
