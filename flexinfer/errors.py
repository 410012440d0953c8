"""The exception tree of flexinfer; each class carries the exit code the command line gives it.

FlexinferError            1  ran, but the verdict is negative or a write failed
+-- UsageError            2  a wrong option, name or file
|   +-- OutOfRange        2  a setting whose value is not allowed
+-- EnvironmentUnfit      3  this machine or installation cannot do it
+-- NotEnoughMemory       4  weights, activations or the KV cache do not fit
+-- RequestError          1  one request cannot be served, the others go on
+-- StaleWeights          1  a borrowed parameter has moved since the engine was built
+-- WriteFailed           1  an output could not be written
"""

from __future__ import annotations

from typing import NamedTuple


def one_line(error: BaseException) -> str:
    """Return what an exception says, its kind where it says nothing, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def install_hint(extra: str) -> str:
    """Return the line that installs an optional `extra`, as the README installs the package."""
    return f"pip install -e '.[{extra}]' in the checkout of flexinfer"


class FlexinferError(Exception):
    """Base of every error a user can meet; `message` is one line, `hint` names the cure."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        """Keep the one-line `message` and the optional one-line `hint`."""
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(FlexinferError):
    """Wrong usage or configuration."""

    exit_code = 2


class OutOfRange(UsageError):
    """A setting whose value is not allowed: in the words of the command line, or with `said`."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        """Keep the field's `name`, its `value` and what is `allowed` in words."""
        self.name, self.value, self.allowed = name, value, allowed
        super().__init__(self.said(self.flag))

    @property
    def flag(self) -> str:
        """The option that sets it."""
        return ("--" if len(self.name) > 1 else "-") + self.name.replace("_", "-")

    def said(self, label: str) -> str:
        """Return the complaint, on one line, about a setting that its source calls `label`."""
        return f"{label} is {self.value!r}; allowed: {self.allowed}"


class EnvironmentUnfit(FlexinferError):
    """The machine or the installation cannot do what was asked."""

    exit_code = 3


class NotEnoughMemory(FlexinferError):
    """The memory that was granted or exists does not hold what was asked."""

    exit_code = 4


class RequestError(FlexinferError):
    """One request cannot be served; it becomes an error record and the others go on."""


class StaleWeights(FlexinferError):
    """A parameter the engine borrowed no longer lies where it was."""


class WriteFailed(FlexinferError):
    """An output file or stream could not be written."""


class Failure(NamedTuple):
    """What is said of an exception, and the exit code that it stands for."""

    message: str
    hint: str | None
    exit_code: int

    @property
    def line(self) -> str:
        """All of it on one line, the hint in parentheses."""
        said = f"{self.message} ({self.hint})" if self.hint else self.message
        return " ".join(said.split())


def failure_of(error: Exception) -> Failure:
    """Put an exception into words; the words of an unforeseen one are its own."""
    if isinstance(error, FlexinferError):
        return Failure(error.message, error.hint, error.exit_code)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        hint = "lower --max-batch-size, --max-seq-length or --kv-memory"
        return Failure(f"out of memory: {error}", hint, NotEnoughMemory.exit_code)
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "?").split(".")[0]
        said, cure = f"the package {package} is missing", f"pip install {package}"
        return Failure(said, cure, EnvironmentUnfit.exit_code)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return Failure(f"{where}{error.strerror or error}", None, FlexinferError.exit_code)
    said = f"internal error: {type(error).__name__}: {error}"
    return Failure(said, "--debug shows the traceback", FlexinferError.exit_code)
