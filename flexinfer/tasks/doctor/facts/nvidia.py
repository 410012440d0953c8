"""What the NVIDIA driver says of itself and its devices, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from flexinfer.tasks.doctor.environment import Environment
from flexinfer.tasks.doctor.probe import failure_line

TIMEOUT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Nvidia:
    """The driver's version and device names; `error` says why an installed tool got no answer.

    `shared` says that every device takes several processes at a time (compute mode Default).
    """

    driver: str | None = None
    devices: tuple[str, ...] = ()
    shared: bool = False
    error: str | None = None


def find_nvidia(environment: Environment) -> Nvidia:
    """Ask nvidia-smi; an empty answer means that there is no driver here."""
    tool = environment.which("nvidia-smi")
    if tool is None:
        return Nvidia()
    outcome = environment.run(
        [tool, "--query-gpu=driver_version,name,compute_mode", "--format=csv,noheader"],
        timeout_s=TIMEOUT_S,
        variables=environment.variables,
        on_line=lambda line: None,
    )
    rows = [
        [part.strip() for part in line.split(",")]
        for line in outcome.stdout.splitlines()
        if "," in line
    ]
    if outcome.code != 0 or not rows:
        said = " ".join(outcome.stdout.split()) or failure_line(outcome, TIMEOUT_S)
        return Nvidia(error=said or "no device")
    return Nvidia(
        driver=rows[0][0],
        devices=tuple(row[1] for row in rows),
        shared=all(row[2:] == ["Default"] for row in rows),
    )
