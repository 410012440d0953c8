"""The files that a run will write: unfit ones are found before anything is loaded."""

from __future__ import annotations

from flexinfer.errors import UsageError
from flexinfer.tasks.charts.write import check_report
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.records.stats_file import check_stats
from flexinfer.tasks.grpo.saved.folder import ahead, check_folder


def check_outputs(config: GrpoConfig) -> None:
    """Raise UsageError, WriteFailed or EnvironmentUnfit for a file that could not be written."""
    check_folder(config.output_dir)
    if config.stats_path is not None:
        check_stats(ahead(config.stats_path, config.output_dir))
    if config.report is not None:
        if config.report.absolute() == config.stats_file.absolute():
            raise UsageError(f"--report and --stats-path are one file, {config.report}")
        check_report(str(ahead(config.report, config.output_dir)))
