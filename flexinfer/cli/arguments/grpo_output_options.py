"""The options of train-grpo that say what is shown and written, and where from a run goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flexinfer.cli.arguments.flags import option
from flexinfer.cli.arguments.options import OUTPUT


@dataclass(frozen=True, kw_only=True)
class RunFlags:
    """Where a run goes on from, and what it leaves."""

    output_dir: Annotated[
        str,
        option(
            "--output-dir",
            panel=OUTPUT,
            metavar="DIR",
            help="Adapter, checkpoints and rollouts.jsonl.",
        ),
    ] = "flexinfer-grpo"
    resume: Annotated[
        bool, option("--resume", panel=OUTPUT, help="Go on from the newest checkpoint.")
    ] = False
    save_steps: Annotated[
        int | None,
        option(
            "--save-steps",
            panel=OUTPUT,
            metavar="N",
            help="Steps between checkpoints (default: one at the end, or at Ctrl-C).",
        ),
    ] = None
    report: Annotated[
        str | None,
        option("--report", panel=OUTPUT, metavar="FILE", help="Curves, as .png or .html."),
    ] = None
    report_to: Annotated[
        str | None,
        option("--report-to", panel=OUTPUT, metavar="NAME", help="A tracker, such as wandb."),
    ] = None
    stats_path: Annotated[
        str | None,
        option(
            "--stats-path",
            panel=OUTPUT,
            metavar="FILE",
            help="The JSON document (default: stats.json in the output folder).",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class PlanFlags:
    """What is read and shown before anything runs."""

    config: Annotated[
        str | None,
        option("--config", panel=OUTPUT, metavar="FILE", help="Options, as YAML."),
    ] = None
    dry_run: Annotated[
        bool, option("--dry-run", panel=OUTPUT, help="Show batches and memory, and stop.")
    ] = False
