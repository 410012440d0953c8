"""The files that a run will write: unfit ones are found before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from flexinfer.errors import UsageError
from flexinfer.tasks.charts.write import check_report
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.records.rollouts_file import NAME
from flexinfer.tasks.grpo.records.stats_file import check_stats
from flexinfer.tasks.grpo.saved.checkpoints import CARD, SETTINGS
from flexinfer.tasks.grpo.saved.folder import ahead, check_folder
from flexinfer.tasks.grpo.saved.whole import ADAPTER, ADAPTER_CONFIG

OWN = frozenset({ADAPTER, ADAPTER_CONFIG, CARD, SETTINGS, NAME, "training_args.bin"})
OWN_KINDS = ("checkpoint-*", "tokenizer*", "chat_template*", "special_tokens_map*")
"""Names of what a run writes into its folder beside statistics and a report."""


def check_outputs(config: GrpoConfig) -> None:
    """Raise UsageError, WriteFailed or EnvironmentUnfit for a file that could not be written."""
    check_folder(config.output_dir)
    for flag, path in (("--stats-path", config.stats_path), ("--report", config.report)):
        if path is not None and _is_the_runs_own(path, config.output_dir):
            raise UsageError(f"{flag} {path} is a file of the run itself", hint="name another")
    if config.stats_path is not None:
        check_stats(ahead(config.stats_path, config.output_dir))
    if config.report is not None:
        if config.report.absolute() == config.stats_file.absolute():
            raise UsageError(f"--report and --stats-path are one file, {config.report}")
        check_report(str(ahead(config.report, config.output_dir)))


def _is_the_runs_own(path: Path, folder: Path) -> bool:
    """Tell whether a run writes another file of that name, or into a folder of it."""
    above = [path.absolute(), *path.absolute().parents]
    inside = next((p for p in above if p.parent == folder.absolute()), None)
    if inside is None:
        return False
    return inside.name in OWN or any(inside.match(kind) for kind in OWN_KINDS)
