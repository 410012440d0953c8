"""`flexinfer generate`: prompts in, texts or JSON Lines out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer

from flexinfer.cli.arguments.engine_options import EngineFlags
from flexinfer.cli.arguments.flags import option
from flexinfer.cli.arguments.options import (
    IGNORE_EOS,
    OUTPUT,
    SAMPLING,
    CommonFlags,
    ModelFlags,
    max_new_tokens,
    temperature,
)
from flexinfer.cli.files import opened, refuse_same
from flexinfer.cli.terminal.console import Console
from flexinfer.cli.terminal.remarks import remarks, resumable, unshown
from flexinfer.config import SamplingParams, resolve_sampling
from flexinfer.errors import UsageError

if TYPE_CHECKING:
    from flexinfer.tasks.generate.input import Item
    from flexinfer.tasks.generate.output import Format

INPUT = "Input"
T = TypeVar("T")


def _own(name: str) -> str:
    """Return what --help says of the default of a sampling value."""
    return f" (default: the model's own, else {getattr(SamplingParams, name):g})"


@dataclass(frozen=True, kw_only=True)
class InputFlags:
    """Where the prompts come from."""

    prompts: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT", rich_help_panel=INPUT, help="User messages."),
    ] = None
    input: Annotated[
        str | None,
        option(
            "--input",
            "-i",
            panel=INPUT,
            metavar="FILE",
            help="JSON Lines with prompt, messages or prompt_token_ids; - is stdin.",
        ),
    ] = None
    system: Annotated[
        str | None, option("--system", panel=INPUT, metavar="TEXT", help="System message.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class SamplingFlags:
    """How to sample; what is not given comes from the checkpoint's generation_config."""

    max_new_tokens: Annotated[int | None, max_new_tokens(_own("max_new_tokens"))] = None
    temperature: Annotated[float | None, temperature(_own("temperature"))] = None
    top_p: Annotated[
        float | None,
        option("--top-p", panel=SAMPLING, metavar="P", help=f"1 is off{_own('top_p')}."),
    ] = None
    top_k: Annotated[
        int | None,
        option("--top-k", panel=SAMPLING, metavar="K", help=f"0 or -1 is off{_own('top_k')}."),
    ] = None
    min_p: Annotated[
        float | None,
        option("--min-p", panel=SAMPLING, metavar="P", help=f"0 is off{_own('min_p')}."),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        option(
            "--repetition-penalty",
            panel=SAMPLING,
            metavar="X",
            help=f"1 is off{_own('repetition_penalty')}.",
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        option("--stop", panel=SAMPLING, metavar="TEXT", help="End before this; repeatable."),
    ] = None
    ignore_eos: Annotated[bool | None, IGNORE_EOS] = None
    n: Annotated[
        int | None,
        option(
            "-n",
            "--n",
            panel=SAMPLING,
            metavar="N",
            help=f"Samples of each prompt (default: {SamplingParams.n}).",
        ),
    ] = None
    logprobs: Annotated[
        bool, option("--logprobs", panel=SAMPLING, help="Add log-probabilities to each sample.")
    ] = False

    def given(self) -> dict[str, Any]:
        """Return what was asked for, without what was left out; raises UsageError."""
        from flexinfer.tasks.generate.input import require_text

        for text in self.stop or []:
            require_text("--stop", text)
        values = vars(self).items()
        given = {k: v for k, v in values if v is not None and v is not False and v != []}
        resolve_sampling(given, {})
        return given


@dataclass(frozen=True, kw_only=True)
class OutputFlags:
    """Where the results go."""

    output: Annotated[
        str, option("--output", "-o", panel=OUTPUT, metavar="FILE", help="- is stdout.")
    ] = "-"
    format: Annotated[
        str | None,
        option(
            "--format",
            panel=OUTPUT,
            metavar="text|jsonl",
            help="Default: jsonl with --input or --output, else text.",
        ),
    ] = None
    resume: Annotated[
        bool, option("--resume", panel=OUTPUT, help="Make only what --output lacks.")
    ] = False

    def form(self, from_file: bool) -> Format:
        """Return the format: what was asked for, else jsonl wherever a file takes part."""
        form = self.format or ("jsonl" if from_file or self.output != "-" else "text")
        if form not in ("text", "jsonl"):
            raise UsageError(f"--format is {form!r}; allowed: text, jsonl")
        if self.resume and (self.output == "-" or form != "jsonl"):
            raise UsageError("--resume needs --output FILE in the format jsonl")
        return cast("Format", form)


def generate(
    asked: InputFlags,
    output: OutputFlags,
    sampling: SamplingFlags,
    model: ModelFlags,
    engine: EngineFlags,
    common: CommonFlags,
) -> int:
    """Generate text from prompts, or from a file of requests."""
    from flexinfer.cli.terminal.results import Results
    from flexinfer.tasks.generate.records import refusals
    from flexinfer.tasks.generate.requests import GenerateConfig
    from flexinfer.tasks.generate.resume import read_finished
    from flexinfer.tasks.generate.run import model_name, run_generate

    if model.model is not None:
        model_name(model.model)
    form = output.form(from_file=asked.input is not None)
    settings, given = engine.config(), sampling.given()
    refuse_same(asked.input, output.output)
    with Console(quiet=common.quiet) as console, opened(output.output) as file:
        items = _items(asked, raw=model.chat_template == "none")
        ids = [item.id for item in items]
        for line in (
            *remarks(items, output.output, form, output.resume),
            *unshown(items, form, as_json=common.as_json, logprobs=sampling.logprobs),
        ):
            console.notice(line)
        finished = read_finished(Path(output.output), ids) if output.resume else {}
        options = model.options(engine.seed, console.notice)
        config = GenerateConfig(
            model=options, engine=settings, items=items, sampling=given, finished=finished
        )
        single = len(items) == 1 and sampling.n in (None, 1)
        results = Results(
            file,
            form,
            items,
            finished,
            as_json=common.as_json,
            single=single,
            resumable=resumable(items, output.output, form),
        )
        results.announce(refusals(config.items).values())
        report = run_generate(
            config,
            partial(_off_screen, console, results.add),
            console.report,
            notice=console.notice,
            on_text=partial(_off_screen, console, results.show) if results.live else None,
        )
        results.close(report)
        console.notice(report.summary)
    return results.finish(report)


def _off_screen(console: Console, write: Callable[[T], None], value: T) -> None:
    """Take the progress bars away before something is written to the same screen."""
    if sys.stdout is not None and sys.stdout.isatty():
        console.pause()
    write(value)


def _items(asked: InputFlags, raw: bool) -> tuple[Item, ...]:
    """Read the prompts of the command line, or the lines of --input."""
    from flexinfer.tasks.generate.input import items_from_file, items_from_prompts

    if (asked.input is None) == (not asked.prompts):
        word = "no prompt" if asked.input is None else "both prompts and --input"
        hint = 'flexinfer generate "12+30=", --input FILE.jsonl, or --input - for standard input'
        raise UsageError(word, hint=hint)
    if asked.prompts == ["-"]:
        raise UsageError("PROMPT is -", hint="--input - reads JSON Lines from standard input")
    if asked.input is not None:
        stdin = None if sys.stdin is None else sys.stdin.buffer
        return items_from_file(asked.input, stdin, asked.system)
    return items_from_prompts(asked.prompts or [], raw=raw, system=asked.system)
