"""A run that fails before its first step leaves nothing: no folder, no file that was not there.

One that is interrupted did not fail: its statistics say how far it came.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.records.rollouts_file import NAME
from flexinfer.tasks.grpo.saved.checkpoints import SETTINGS, newest
from flexinfer.tasks.grpo.saved.whole import ADAPTER


@contextmanager
def folder_unmade(folder: Path) -> Iterator[None]:
    """Take away the folders that were made within, where what failed left them empty."""
    path = folder.absolute()
    missing = [each for each in (path, *path.parents) if not each.exists()]
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for each in missing:
                each.rmdir()
        raise


@contextmanager
def files_unmade(config: GrpoConfig) -> Iterator[None]:
    """Take away the files that were made within, where what failed had trained nothing.

    Only for who has locked the output folder: they would be another run's.
    """
    folder = config.output_dir
    own = (folder / SETTINGS, folder / NAME, config.stats_file, config.report)
    fresh = [path for path in own if path is not None and not path.exists()]
    try:
        yield
    except Exception:
        if not _trained(folder):
            for path in fresh:
                with suppress(OSError):
                    path.unlink()
        raise


def _trained(folder: Path) -> bool:
    """Tell whether a folder holds anything of a step: completions, a checkpoint, an adapter."""
    rollouts = folder / NAME
    learned = rollouts.exists() and rollouts.stat().st_size > 0
    return learned or newest(folder) is not None or (folder / ADAPTER).exists()
