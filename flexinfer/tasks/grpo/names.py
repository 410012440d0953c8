"""Names that transformers, TRL and this package know: wrong ones are told before anything loads."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from flexinfer.backends.base.options import check_lora_mode
from flexinfer.backends.choose import check_backend
from flexinfer.backends.vllm.engine import check_config
from flexinfer.config import EngineConfig, ModelOptions, SamplingParams
from flexinfer.errors import EnvironmentUnfit, UsageError
from flexinfer.tasks.grpo.config import GrpoConfig
from flexinfer.tasks.grpo.extras import need

LOSSES = ("dapo", "grpo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo")
"""TRL's losses that an importance weight of the advantages corrects; vespo's takes it otherwise."""


def check_own_names(config: GrpoConfig) -> None:
    """Raise UsageError for a back end or loss that nobody knows, OutOfRange for wrong sampling.

    And EnvironmentUnfit for a back end that is not installed; no library is imported.
    """
    check_backend(config.rollout, "--rollout")
    _one_of("--loss-type", config.loss_type, LOSSES)
    _sampling(config)


def check_names(config: GrpoConfig) -> None:
    """Raise UsageError for a name that transformers does not know, or samples that vLLM cannot.

    And EnvironmentUnfit for what is not installed, or cannot be imported.
    """
    from transformers import SchedulerType
    from transformers.training_args import OptimizerNames

    _one_of("--optim", config.optim, [name.value for name in OptimizerNames])
    _one_of("--lr-scheduler", config.lr_scheduler, [name.value for name in SchedulerType])
    if config.report_to not in (None, "none", "all"):
        _check_tracker(config.report_to)
    if config.rollout == "vllm":
        _check_vllm_samples(config)
    if config.rollout == "hf-cb":
        from flexinfer.backends.huggingface.cb_api import check_continuous_batching

        check_continuous_batching()
    if config.optim.endswith("8bit"):
        need("bitsandbytes", f"--optim {config.optim}", "quant")


def check_unheard(options: ModelOptions, engine: EngineConfig, config: GrpoConfig) -> None:
    """Raise UsageError for a setting that the back end of the rollout would not hear."""
    check_lora_mode(config.rollout, options.lora_mode)
    if config.rollout != "vllm":
        return
    check_config(engine, beside=True)
    for given, flag in ((config.sleep, "--sleep"), (options.load_in_4bit, "--load-in-4bit")):
        if given:
            raise UsageError(f"{flag} means nothing to vllm", hint="leave it out")


def _check_vllm_samples(config: GrpoConfig) -> None:
    """Raise UsageError for sampling of which vLLM tells no log-probabilities of the policy."""
    from flexinfer.backends.vllm.backend import unsampled

    why = unsampled(_sampling(config))
    if why is not None:
        raise UsageError(f"--rollout vllm: {why}", hint="take another back end, or sample plainly")


def _sampling(config: GrpoConfig) -> SamplingParams:
    """Return how completions are sampled; raises OutOfRange."""
    names = ("temperature", "top_p", "top_k", "min_p")
    return SamplingParams(**{name: getattr(config, name) for name in names})


def _check_tracker(name: str | None) -> None:
    """Raise where transformers has no such tracker, or its package is not installed."""
    from transformers.integrations import get_available_reporting_integrations
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    known = sorted(INTEGRATION_TO_CALLBACK)
    _one_of("--report-to", str(name), known)
    if name not in get_available_reporting_integrations():
        raise EnvironmentUnfit(
            f"--report-to {name}: its package is not installed", hint=f"pip install {name}"
        )


def _one_of(flag: str, value: str, known: Sequence[str]) -> None:
    """Raise UsageError, naming the nearest, where a value is none of those known."""
    if value in known:
        return
    near = difflib.get_close_matches(value.lower(), known, n=1, cutoff=0.5)
    raise UsageError(
        f"{flag} {value!r} is unknown",
        hint=f"did you mean {near[0]}?" if near else "known: " + ", ".join(known),
    )
