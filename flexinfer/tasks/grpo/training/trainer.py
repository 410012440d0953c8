"""TRL's GRPOTrainer, corrected for what the sampler's log-probabilities are off by.

TRL corrects rollouts of vLLM alone. This one measures the gap between the rollout's and its own
log-probabilities in every step, whatever made the rollout, logs it, and weights the loss for it.
"""

from __future__ import annotations

from pathlib import Path
from shutil import disk_usage
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from trl import GRPOTrainer

from flexinfer.errors import FlexinferError, StaleWeights, UsageError, WriteFailed, one_line
from flexinfer.tasks.grpo.names import LOSSES
from flexinfer.tasks.grpo.training.correction import Correction, GapSums, gap_between
from flexinfer.tasks.grpo.training.narrow import narrowed
from flexinfer.tasks.grpo.training.uncast import casting, plain_layers

LITTLE_DISK = 2**20
"""Bytes free below which a failed write is one of a full disk, whatever its library says."""


class OnPolicyGRPOTrainer(GRPOTrainer):  # type: ignore[misc]  # TRL has no type stubs
    """A GRPOTrainer that takes a `correction`; all else is TRL's.

    The weights multiply the advantages, as [B, T]: every loss of TRL's is linear in them up to
    their sign, which the weights do not change, so this is what TRL does with its own ratio.
    They cost no forward pass: the training pass itself gives the trainer's log-probabilities.
    """

    _buffered_inputs: list[dict[str, Any]] | None

    def __init__(self, *args: Any, correction: Correction | None = None, **kwargs: Any) -> None:
        """See GRPOTrainer; raises UsageError where a loss is not corrected, or would be twice."""
        super().__init__(*args, **kwargs)
        self.correction = correction or Correction()
        self._check_correction()
        self._gaps: dict[str, GapSums] = {}  # of train and of eval, since they were last logged
        # under autocast alone: without it, the masters' dtype is the product's
        self._uncast = plain_layers(self.model) if self.accelerator.native_amp else ()
        self._pending: dict[str, Any] | None = None

    def _check_correction(self) -> None:
        """Raise UsageError where the weights would be wrong."""
        if self.correction.mode == "none":
            return
        if self.loss_type not in LOSSES:
            raise UsageError(
                f"importance weights of the advantages do not correct the loss {self.loss_type}",
                hint=f"take one of {', '.join(LOSSES)}, or correction=Correction('none')",
            )
        if self.use_vllm and self.vllm_importance_sampling_correction:
            raise UsageError(
                "TRL corrects rollouts of vLLM too: they would be corrected twice",
                hint="set vllm_importance_sampling_correction=False",
            )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """TRL's log, and in it the gap since the last one; reading it waits for the device."""
        mode = self._mode()
        if mode in self._gaps:
            for name, value in self._gaps.pop(mode).read().items():
                self._metrics[mode][name] = [value]
        super().log(logs, start_time)

    def take_weights(self, checkpoint: Path) -> None:
        """Put the adapter of a checkpoint into the model, without training on."""
        self._load_from_checkpoint(str(checkpoint))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Go on with the rate of this run's schedule, which is longer than that of the checkpoint.

        The optimizer's own is that of the old one, which at its end is 0.
        """
        super()._load_optimizer_and_scheduler(checkpoint)
        schedule = self.lr_scheduler
        if checkpoint is not None and isinstance(schedule, LambdaLR):
            bases = zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
            rates = [base * factor(schedule.last_epoch) for base, factor in bases]
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            schedule._last_lr = rates  # what is logged of the next step

    def _move_model_to_device(self, model: Any, device: torch.device) -> None:
        """Leave weights on a CPU where they are: moving them to `cpu:1` would copy them.

        A back end borrows them.
        """
        if device.type != "cpu" or any(p.device.type != "cpu" for p in model.parameters()):
            super()._move_model_to_device(model, device)

    def create_accelerator_and_postprocess(self) -> None:
        """Have the accelerator leave them there, too."""
        super().create_accelerator_and_postprocess()
        if self.accelerator.device.type == "cpu":
            self.accelerator.device_placement = False

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write a checkpoint; raises WriteFailed, whichever library could not."""
        try:
            super()._save_checkpoint(model, trial)
        except (OSError, SafetensorError, RuntimeError) as error:
            folder = self.args.output_dir
            full = disk_usage(folder).free < LITTLE_DISK
            why = "no space is left on its disk" if full else one_line(error)
            raise WriteFailed(f"no checkpoint in {folder}: {why}") from error

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Roll out; raises StaleWeights, or FlexinferError for a log-probability that is none."""
        learns = torch.is_grad_enabled()
        with casting(self._uncast, True):  # a back end may run the module without autocast
            scored: dict[str, Any] = super()._generate_and_score_completions(inputs)
        torch.set_grad_enabled(learns)  # a reward may have switched it off
        step = self.state.global_step
        version = inputs[0].get("policy_version", step)  # where the rollout tells it
        if version != step:
            raise StaleWeights(f"step {step} got a rollout of step {version}")
        rollout_BT = scored.get("sampling_per_token_logps")
        if rollout_BT is None or not bool(torch.isfinite(rollout_BT).all()):
            raise FlexinferError(
                "the rollout came without its log-probabilities",
                hint="importance sampling needs them: a back end that returns them",
            )
        return scored

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """TRL's micro-batch, on no more columns than it uses: all of a rollout are cut at once."""
        before = self._buffered_inputs
        inputs: dict[str, Any] = super()._prepare_inputs(generation_batch)
        if self._buffered_inputs is None or self._buffered_inputs is before:
            return inputs
        cut = self._buffered_inputs = narrowed(self._buffered_inputs)
        place: int = self._step % self.args.steps_per_generation
        return cut[place]

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """TRL's step of a micro-batch, forward and backward, without casts that change no bit."""
        with casting(self._uncast, False):
            loss: Tensor = super().training_step(*args, **kwargs)
        return loss

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """Weight the advantages of a micro-batch, then TRL's loss."""
        self._pending = dict(inputs)
        loss: Tensor = super()._compute_loss(model, self._pending)
        assert self._pending is None, "TRL's loss reads no log-probabilities of its own any more"
        return loss

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        """TRL's forward pass; the first one of a loss also gives the weights of its advantages.

        TRL reads the advantages after it, which a test pins.
        """
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._pending is not None:
            inputs, self._pending = self._pending, None
            self._correct(inputs, found[0].detach())
        return found

    def _correct(self, inputs: dict[str, Any], trainer_BT: Tensor) -> None:
        """Measure the gap of a micro-batch, and weight its advantages in place of the old ones."""
        rollout_BT = inputs["sampling_per_token_logps"]
        old_BT = inputs.get("old_per_token_logps", trainer_BT)
        mask_BT = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        gap = gap_between(old_BT, rollout_BT, mask_BT).of_all(self.accelerator.gather)
        mode = self._mode()
        self._gaps[mode] = self._gaps[mode] + gap if mode in self._gaps else gap
        weights = self.correction.weights(old_BT, rollout_BT, mask_BT)
        if weights is not None:
            inputs["advantages"] = inputs["advantages"].unsqueeze(-1) * weights

    def _mode(self) -> str:
        """Return which of TRL's metrics are being gathered, as it tells them apart."""
        return "train" if self.model.training else "eval"
