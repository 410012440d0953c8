"""The `flexinfer` command line: which commands there are, and the options before them."""

from __future__ import annotations

from typing import Annotated

import typer

from flexinfer import __version__
from flexinfer.cli.app import Command, Group
from flexinfer.cli.arguments.flags import grouped, option
from flexinfer.cli.arguments.options import CommonFlags
from flexinfer.cli.bench import bench
from flexinfer.cli.config_file import ConfiguredCommand
from flexinfer.cli.doctor import doctor
from flexinfer.cli.generate import generate
from flexinfer.cli.terminal.console import print_data
from flexinfer.cli.train_grpo import train_grpo
from flexinfer.cli.verify_drift import verify_drift

COMMANDS = (generate, bench, verify_drift, train_grpo, doctor)


def flexinfer(
    context: typer.Context,
    common: CommonFlags,
    version: Annotated[
        bool, option("--version", panel="Options", help="Show the version.")
    ] = False,
    # typer would start pydantic to parse the absence of its own --help
    show_help: Annotated[
        bool, option("--help", "-h", panel="Options", help="Show this message and exit.")
    ] = False,
) -> int:
    """LLM rollouts and evaluation from the trainer's own weights, on one GPU."""
    if version:
        print_data(f"flexinfer {__version__}\n")
        raise typer.Exit
    if show_help or context.invoked_subcommand is None:
        print_data(context.get_help() + "\n")
        raise typer.Exit
    names = (command.__name__.replace("_", "-") for command in COMMANDS)
    context.default_map = dict.fromkeys(names, vars(common))
    return 0


app = typer.Typer(
    name="flexinfer",
    cls=Group,
    callback=grouped(flexinfer),
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for command in COMMANDS:
    app.command(cls=ConfiguredCommand if command is train_grpo else Command)(grouped(command))
