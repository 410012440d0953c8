"""One call of a back end that reads whole results, sample by sample."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from flexinfer.engine.requests.outputs import Request, RequestOutput
from flexinfer.engine.requests.results import Results, Sample
from flexinfer.engine.steps.nonfinite import NOT_FINITE, finite


@dataclass
class Call:
    """One `generate` on its way: results so far, and the outputs that are complete, by index."""

    requests: dict[int, Request]
    results: Results
    started: float = field(default_factory=time.perf_counter)
    outputs: dict[int, RequestOutput] = field(default_factory=dict)

    def add(self, sample: Sample, token: int, logprob: float, policy_logprob: float) -> bool:
        """Append a token to a sample; return whether the sample is over."""
        if sample.request in self.outputs:
            return True
        if not finite(logprob, policy_logprob):
            self.refuse(sample, NOT_FINITE)
            return True
        if not self.results.add(sample, token, logprob, policy_logprob):
            return False
        if (output := self.results.complete(sample)) is not None:
            self.outputs[sample.request] = output
        return True

    def refuse(self, sample: Sample, error: str) -> None:
        """Give up the whole request of a sample."""
        if sample.request not in self.outputs:
            self.outputs[sample.request] = self.results.refuse(sample.request, error)
