"""Every option that more than one command takes, declared once: groups that commands compose.

A command takes a group as one parameter (`flags.grouped` shows typer its single options). A metavar
says what a value may be, to the reader and to the completion scripts: `a|b` is a choice, FILE and
DIR are paths, MODEL an alias, JSON an object, SIZE a number such as 4k or 8GiB.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast, get_args

from flexinfer import config
from flexinfer.cli.flags import option
from flexinfer.config import EngineConfig, ModelOptions, parse_size
from flexinfer.errors import UsageError

MODEL, ENGINE, SAMPLING, OUTPUT = "Model", "Engine", "Sampling", "Output"

MODEL_NAME = option(
    "--model",
    "-m",
    panel=MODEL,
    metavar="MODEL",
    help="Alias, hub id, folder or .gguf file (default: chosen by the device, and said).",
)
MAX_NEW_TOKENS = option("--max-new-tokens", panel=SAMPLING, metavar="N", help="Tokens to generate.")
TEMPERATURE = option("--temperature", panel=SAMPLING, metavar="T", help="0 is greedy.")
IGNORE_EOS = option(
    "--ignore-eos/--no-ignore-eos", panel=SAMPLING, help="Go on after an EOS token."
)


def _choices(literal: Any) -> str:
    """Return the metavar of a Literal from flexinfer.config."""
    return "|".join(get_args(literal))


@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """Which weights, in which form, and where."""

    model: Annotated[str | None, MODEL_NAME] = None
    load_format: Annotated[
        str,
        option(
            "--load-format",
            panel=MODEL,
            metavar=_choices(config.LoadFormat),
            help="dummy: random weights of the real shape, no network.",
        ),
    ] = "auto"
    adapter: Annotated[
        str | None,
        option(
            "--adapter",
            "--lora-adapter",
            panel=MODEL,
            metavar="DIR",
            help="PEFT folder, or random[:RANK] for a seeded one.",
        ),
    ] = None
    lora_mode: Annotated[
        str,
        option(
            "--lora-mode",
            panel=MODEL,
            metavar=_choices(config.LoraMode),
            help="Merged into a copy of its targets, or beside them.",
        ),
    ] = "merged"
    load_in_4bit: Annotated[
        bool, option("--load-in-4bit", panel=MODEL, help="NF4, double quantisation.")
    ] = False
    dtype: Annotated[
        str,
        option("--dtype", panel=MODEL, metavar=_choices(config.Dtype), help="Of weights and KV."),
    ] = "auto"
    device: Annotated[
        str, option("--device", panel=MODEL, metavar=_choices(config.Device), help="Where it runs.")
    ] = "auto"
    chat_template: Annotated[
        str,
        option(
            "--chat-template",
            panel=MODEL,
            metavar=_choices(config.ChatTemplate),
            help="auto: grpo for Qwen3, else the tokenizer's own; none: raw text.",
        ),
    ] = "auto"

    def options(self, seed: int, notice: Callable[[str], None]) -> ModelOptions:
        """Return the checked options; says which model runs where none was named."""
        model = self.model
        if model is None:
            from flexinfer.weights.names import default_model

            model, reason = default_model()
            notice(reason)
        values: dict[str, Any] = vars(self) | {"model": model, "seed": seed}
        return ModelOptions(**values)


@dataclass(frozen=True, kw_only=True)
class EngineFlags:
    """How the engine runs; what is not given is decided from the work and the device, and said."""

    max_batch_size: Annotated[
        str,
        option(
            "--max-batch-size",
            panel=ENGINE,
            metavar="N",
            help="Sequences decoded at once (bench: a list such as 1,8,32 to sweep).",
        ),
    ] = "64"
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
        option("--page-size", panel=ENGINE, metavar="N", help="Tokens in a KV page."),
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
            "--prefill-tokens", panel=ENGINE, metavar="SIZE", help="Token budget of a prefill step."
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
            metavar=_choices(config.AttentionBackend),
            help="The back end; auto says which and why.",
        ),
    ] = "auto"
    fa4_prefill: Annotated[
        bool | None,
        option(
            "--fa4-prefill/--no-fa4-prefill",
            panel=ENGINE,
            help="Prefill with FlashAttention 4 (default: where it pays).",
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
            "max_batch_size": max_batch_size or one_size(self.max_batch_size, "--max-batch-size"),
            "prefill_kernel_options": _json_object(
                self.prefill_kernel_options, "--prefill-kernel-options"
            ),
            "decode_kernel_options": _json_object(
                self.decode_kernel_options, "--decode-kernel-options"
            ),
        }
        for name in ("max_seq_length", "kv_memory", "prefill_tokens"):
            text = cast("str | None", values.pop(name))
            if text is not None:
                values[name] = parse_size(text, "--" + name.replace("_", "-"))
        return EngineConfig(**values)


@dataclass(frozen=True, kw_only=True)
class CommonFlags:
    """What every command takes."""

    as_json: Annotated[
        bool, option("--json", panel=OUTPUT, help="One JSON document on stdout.")
    ] = False
    quiet: Annotated[
        bool, option("--quiet", "-q", panel=OUTPUT, help="No progress and no notices on stderr.")
    ] = False
    debug: Annotated[bool, option("--debug", panel=OUTPUT, help="Show tracebacks.")] = False


def one_size(text: str, flag: str) -> int:
    """Read a size where a list is refused; raises UsageError."""
    if "," in text:
        raise UsageError(f"{flag} {text!r} is a list", hint="only bench sweeps; give one number")
    return parse_size(text, flag)


def _json_object(text: str | None, flag: str) -> Mapping[str, Any]:
    """Read a JSON object, {} where nothing was given; raises UsageError."""
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise UsageError(f"{flag} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{flag} is not a JSON object", hint="write it like '{\"num_warps\": 4}'")
    return value
