"""What a run of doctor shares between its checks: the machine, the mode, the model, past probes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from flexinfer.config import Report, quiet
from flexinfer.tasks.doctor.environment import Environment
from flexinfer.tasks.doctor.nvidia import Nvidia, find_nvidia
from flexinfer.tasks.doctor.probe import Probe, Row, run_probe
from flexinfer.tasks.doctor.report import DoctorConfig, Mode
from flexinfer.tasks.doctor.target import Target, find_target
from flexinfer.tasks.doctor.torch_facts import TorchFacts

IMPORT_TIMEOUT_S = 180.0


class Context:
    """One run: every question is asked at most once."""

    def __init__(
        self,
        environment: Environment,
        config: DoctorConfig,
        selected: frozenset[str],
        report: Report = quiet,
    ) -> None:
        """Keep what is given; `selected` names the checks of this run; nothing is asked yet."""
        self.environment = environment
        self.config = config
        self.selected = selected
        self.position = (0, len(selected))
        self._report = report
        self._past: dict[tuple[str, ...], Probe] = {}

    def say(self, stage: str) -> None:
        """Report progress within the check that is running."""
        self._report(stage, *self.position)

    @property
    def mode(self) -> Mode:
        """The mode that is asked about."""
        return self.config.mode

    @cached_property
    def torch(self) -> TorchFacts:
        """What torch says of itself and of the devices."""
        return TorchFacts.from_probe(self.probe("torch_facts", timeout_s=IMPORT_TIMEOUT_S))

    @cached_property
    def nvidia(self) -> Nvidia:
        """What the NVIDIA driver says, without torch."""
        return find_nvidia(self.environment)

    @cached_property
    def target(self) -> Target:
        """The model; raises UsageError where `--model` names none."""
        asked = self.config.model
        return find_target(self.environment, asked, cuda=asked is None and self.torch.cuda)

    def refuse_wrong_model(self) -> None:
        """Raise UsageError for a `--model` that names nothing, before anything slow begins."""
        if self.config.model is not None:
            _ = self.target

    def probe(
        self,
        script: str,
        *arguments: str,
        timeout_s: float,
        on_row: Callable[[Row], None] = lambda row: None,
    ) -> Probe:
        """Run a script of `probes/`, or return what it said before."""
        key = (script, *arguments)
        if key not in self._past:
            self._past[key] = run_probe(
                self.environment, script, *arguments, timeout_s=timeout_s, on_row=on_row
            )
        return self._past[key]

    def has_probed(self, script: str, *arguments: str) -> bool:
        """Whether the answer of a script is known already."""
        return (script, *arguments) in self._past

    def imported(self, module: str, *names: str) -> Probe:
        """Import `module` in a process of its own and take `names` from it."""
        return self.probe("importing", module, *names, timeout_s=IMPORT_TIMEOUT_S)
