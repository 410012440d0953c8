"""`rollouts.jsonl`: every completion that was learned from, a line each, on disk step by step."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from flexinfer.errors import UsageError, WriteFailed
from flexinfer.tasks.grpo.records.record import finite
from flexinfer.tasks.output_file import write_whole

NAME = "rollouts.jsonl"


@dataclass(frozen=True, kw_only=True)
class RolloutLine:
    """One completion; `step` is the optimizer step, from 1, that first learned from it.

    `logprobs` belong to `token_ids`, one each, of the policy of `policy_version`. A reward is
    None where its function does not apply.
    """

    step: int
    policy_version: int
    prompt: str | Sequence[Mapping[str, str]]
    completion: str
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    rewards: Mapping[str, float | None]
    advantage: float

    def to_json(self) -> str:
        """Return the line, with null for what JSON has no number for."""
        return json.dumps(finite(asdict(self)), ensure_ascii=False, allow_nan=False) + "\n"


class RolloutsFile:
    """The file, open for appending; as a context it is closed in the end."""

    def __init__(self, path: Path, through: int = 0) -> None:
        """Keep the lines up to step `through` of an earlier run; raises WriteFailed or UsageError.

        A last line that was cut short is dropped; a broken one before it is a UsageError.
        """
        self._path = path
        kept = _kept(path, through) if through and path.is_file() else []
        write_whole(path, b"".join(kept), "--output-dir")
        try:
            self._stream = path.open("a", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise WriteFailed(f"cannot write {path}: {error.strerror}") from error

    def __enter__(self) -> RolloutsFile:
        """Hold the file."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it: everything written is on its way to the disk already."""
        self._stream.close()

    def write(self, lines: Iterable[RolloutLine]) -> None:
        """Append the completions of a step and push them out; raises WriteFailed."""
        try:
            self._stream.write("".join(line.to_json() for line in lines))
            self._stream.flush()
        except OSError as error:
            raise WriteFailed(f"cannot write {self._path}: {error.strerror}") from error


def _kept(path: Path, through: int) -> list[bytes]:
    """Return the whole lines of steps up to `through`, as they are."""
    lines = path.read_bytes().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    return [line for number, line in enumerate(lines, 1) if _step(path, number, line) <= through]


def _step(path: Path, number: int, line: bytes) -> int:
    """Return the step of a line; raises UsageError, with its number, for what is none of ours."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(
            f"--resume: line {number} of {path} is no completion: {error}",
            hint="move the file away to go on without it",
        ) from error
