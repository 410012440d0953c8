"""What the torch probe found, typed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from flexinfer.tasks.doctor.probe import Probe


@dataclass(frozen=True, kw_only=True)
class CudaDevice:
    """A CUDA device as torch sees it; memory in bytes."""

    name: str
    capability: tuple[int, int]
    total: int
    free: int

    @property
    def architecture(self) -> str:
        """The capability as compilers write it, such as sm_90."""
        return f"sm_{self.capability[0]}{self.capability[1]}"


@dataclass(frozen=True, kw_only=True)
class TorchFacts:
    """What torch is and can reach; `version` None: it cannot be imported, and `error` says why.

    `error` beside a version: it can be imported, but touching the devices ended badly.
    """

    version: str | None
    cuda_build: str | None = None
    hip_build: str | None = None
    cpu_capability: str = ""
    cuda_error: str | None = None
    devices: tuple[CudaDevice, ...] = ()
    matmul_error: float | None = None
    error: str | None = None
    missing: bool = False

    @property
    def cuda(self) -> bool:
        """Whether a CUDA device was multiplied on."""
        return self.matmul_error is not None

    @classmethod
    def from_probe(cls, probe: Probe) -> Self:
        """Read the rows that probes/torch_facts.py prints."""
        facts = probe.facts
        return cls(
            version=facts.get("version"),
            cuda_build=facts.get("cuda"),
            hip_build=facts.get("hip"),
            cpu_capability=facts.get("cpu_capability") or "",
            cuda_error=facts.get("cuda_error"),
            devices=tuple(
                CudaDevice(**device | {"capability": tuple(device["capability"])})
                for device in facts.get("devices", ())
            ),
            matmul_error=facts.get("matmul_error"),
            error=probe.error,
            missing=probe.lacks("torch"),
        )
