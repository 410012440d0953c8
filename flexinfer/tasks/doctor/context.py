"""What a run of doctor shares between its checks: the machine, the mode, the model, past probes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from flexinfer.tasks.doctor.environment import Environment
from flexinfer.tasks.doctor.facts.nvidia import Nvidia, find_nvidia
from flexinfer.tasks.doctor.facts.torch_facts import TorchFacts
from flexinfer.tasks.doctor.lazy import Lazy
from flexinfer.tasks.doctor.probe import Probe, Row, run_probe
from flexinfer.tasks.doctor.report import DoctorConfig, Mode
from flexinfer.tasks.doctor.target import Target, find_target

IMPORT_TIMEOUT_S = 180.0
MOST_PROBES = 8
AT_ONCE = frozenset({"torch_facts", "flex", "hub"})
"""Scripts that wait for no place: others wait for the first, the second is the longest, the third
does nothing but wait."""

ROOM = 8 * 2**30
"""Free bytes of a device from which on several probes may hold it at the same time."""


class Context:
    """One run, asked by many threads: every question is put at most once."""

    def __init__(
        self,
        environment: Environment,
        config: DoctorConfig,
        selected: frozenset[str],
        say: Callable[[str], None] = lambda stage: None,
    ) -> None:
        """Keep what is given; `selected` names the checks of this run; nothing is asked yet.

        `say` hears of progress within a check, from the thread that runs it.
        """
        self.environment = environment
        self.config = config
        self.selected = selected
        self.say = say
        self._torch = Lazy(self._ask_torch)
        self._nvidia = Lazy(lambda: find_nvidia(environment))
        self._target = Lazy(self._ask_target)
        self._lock = threading.Lock()
        self._probes: dict[tuple[str, ...], Lazy[Probe]] = {}
        self._places = threading.Semaphore(max(2, min(MOST_PROBES, environment.cores)))
        self._device = threading.Lock()

    @property
    def mode(self) -> Mode:
        """The mode that is asked about."""
        return self.config.mode

    @property
    def torch(self) -> TorchFacts:
        """What torch says of itself and of the devices."""
        return self._torch.get()

    @property
    def nvidia(self) -> Nvidia:
        """What the NVIDIA driver says, without torch."""
        return self._nvidia.get()

    @property
    def target(self) -> Target:
        """The model; raises UsageError where `--model` names none."""
        return self._target.get()

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
        stage: str = "",
    ) -> Probe:
        """Run a script of `probes/` once there is a place, or return what it said before."""

        def ask() -> Probe:
            with nullcontext() if script in AT_ONCE else self._places:
                if stage:
                    self.say(stage)
                return run_probe(
                    self.environment, script, *arguments, timeout_s=timeout_s, on_row=on_row
                )

        with self._lock:
            answer = self._probes.setdefault((script, *arguments), Lazy(ask))
        return answer.get()

    def device_probe(
        self,
        script: str,
        *arguments: str,
        timeout_s: float,
        on_row: Callable[[Row], None] = lambda row: None,
        stage: str = "",
    ) -> Probe:
        """Run a script that computes on the device, after torch's own, which measures it idle."""
        with self._turn():
            return self.probe(script, *arguments, timeout_s=timeout_s, on_row=on_row, stage=stage)

    def imported(self, module: str, *names: str) -> Probe:
        """Import `module` in a process of its own and take `names` from it."""
        return self.probe("importing", module, *names, timeout_s=IMPORT_TIMEOUT_S)

    def _turn(self) -> AbstractContextManager[object]:
        """Wait for torch's probe; keep others off a device that is exclusive or nearly full."""
        devices = self.torch.devices
        if not devices or (devices[0].free >= ROOM and self.nvidia.shared):
            return nullcontext()
        return self._device

    def _ask_torch(self) -> TorchFacts:
        """Run torch's probe."""
        return TorchFacts.from_probe(self.probe("torch_facts", timeout_s=IMPORT_TIMEOUT_S))

    def _ask_target(self) -> Target:
        """Look for the model."""
        asked = self.config.model
        return find_target(self.environment, asked, cuda=asked is None and self.torch.cuda)
