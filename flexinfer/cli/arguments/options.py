"""Every option that more than one command takes, declared once: groups that commands compose.

A command takes a group as one parameter (`flags.grouped` shows typer its single options). A metavar
says what a value may be, to the reader and to the completion scripts: `a|b` is a choice, FILE and
DIR are paths, MODEL an alias, JSON an object, SIZE a number such as 4k or 8GiB.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from flexinfer import config
from flexinfer.cli.arguments.flags import option
from flexinfer.config import ModelOptions, parse_size, resolve_sampling

MODEL, ENGINE, SAMPLING, OUTPUT = "Model", "Engine", "Sampling", "Output"


def _tokens(value: str | int) -> int:
    """Read `--max-new-tokens`, a default included; raises UsageError."""
    is_number = isinstance(value, int) or value.strip().removeprefix("-").isdecimal()
    tokens = int(value) if is_number else parse_size(str(value), "--max-new-tokens")
    resolve_sampling({"max_new_tokens": tokens}, {})
    return tokens


MODEL_NAME = option(
    "--model",
    "-m",
    panel=MODEL,
    metavar="MODEL",
    help="Alias, hub id, folder or .gguf file (default: chosen by the device, and said).",
)


def max_new_tokens(note: str = "") -> Any:
    """Declare --max-new-tokens; the `note` may tell a default that typer does not."""
    return option(
        "--max-new-tokens",
        panel=SAMPLING,
        metavar="SIZE",
        help=f"Tokens to generate{note}.",
        parser=_tokens,
    )


def temperature(note: str = "") -> Any:
    """Declare --temperature; the `note` may tell a default that typer does not."""
    return option("--temperature", panel=SAMPLING, metavar="T", help=f"0 is greedy{note}.")


MAX_NEW_TOKENS, TEMPERATURE = max_new_tokens(), temperature()
IGNORE_EOS = option(
    "--ignore-eos/--no-ignore-eos", panel=SAMPLING, help="Go on after an EOS token."
)


def choices(literal: Any) -> str:
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
            metavar=choices(config.LoadFormat),
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
        str | None,
        option(
            "--lora-mode",
            panel=MODEL,
            metavar=choices(config.LoraMode),
            help="Merged into a copy of its targets (default), or beside them (default in 4-bit).",
        ),
    ] = None
    load_in_4bit: Annotated[
        bool, option("--load-in-4bit", panel=MODEL, help="NF4, double quantisation.")
    ] = False
    dtype: Annotated[
        str,
        option("--dtype", panel=MODEL, metavar=choices(config.Dtype), help="Of weights and KV."),
    ] = "auto"
    device: Annotated[
        str, option("--device", panel=MODEL, metavar=choices(config.Device), help="Where it runs.")
    ] = "auto"
    chat_template: Annotated[
        str,
        option(
            "--chat-template",
            panel=MODEL,
            metavar=choices(config.ChatTemplate),
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
class CommonFlags:
    """What every command takes."""

    as_json: Annotated[
        bool, option("--json", panel=OUTPUT, help="One JSON document on stdout.")
    ] = False
    quiet: Annotated[
        bool, option("--quiet", "-q", panel=OUTPUT, help="No progress and no notices on stderr.")
    ] = False
    debug: Annotated[bool, option("--debug", panel=OUTPUT, help="Show tracebacks.")] = False
