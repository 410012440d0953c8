"""The rollout for a GRPOTrainer that somebody else built: all it needs is the trainer's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datasets import IterableDataset

from flexinfer.backends.base.options import RolloutOptions
from flexinfer.backends.live import open_live
from flexinfer.config import ChatTemplate, EngineConfig, LoraMode, ModelOptions
from flexinfer.errors import UsageError
from flexinfer.tasks.grpo.encode import encoder
from flexinfer.tasks.grpo.problems.problem_set import Prompt
from flexinfer.tasks.grpo.processes import own_seed
from flexinfer.tasks.grpo.rollout import Rollout
from flexinfer.tasks.grpo.setup import with_room
from flexinfer.weights.load import adopt


class LiveRollout:
    """A `rollout_func`: at its first call it opens a back end over the trainer's own model."""

    def __init__(
        self,
        config: EngineConfig,
        options: RolloutOptions,
        backend: str,
        lora_mode: LoraMode | None,
        chat_template: ChatTemplate,
    ) -> None:
        """Open nothing yet."""
        self._config, self._options, self._backend = config, options, backend
        self._lora_mode, self._chat_template = lora_mode, chat_template
        self.rollout: Rollout | None = None

    def __call__(self, prompts: Sequence[Prompt], trainer: Any) -> dict[str, list[Any]]:
        """See Rollout."""
        if self.rollout is None:
            self.rollout = self._open(trainer)
        return self.rollout(prompts, trainer)

    @property
    def notices(self) -> tuple[str, ...]:
        """What the open back end runs and why, a line each; some it learns by its first rollout."""
        return () if self.rollout is None else self.rollout.backend.notices

    def close(self) -> None:
        """Give the KV cache and the graphs back; the next call opens anew."""
        if self.rollout is not None:
            self.rollout.backend.close()
        self.rollout = None

    def _open(self, trainer: Any) -> Rollout:
        """Return a rollout over the trainer's model; raises UsageError where there can be none."""
        from peft import PeftModel

        model = trainer.accelerator.unwrap_model(trainer.model)
        module = model.get_base_model() if isinstance(model, PeftModel) else model
        loaded = adopt(module, trainer.processing_class)
        chat = ModelOptions(model=loaded.name, chat_template=self._chat_template)
        encode = encoder(loaded, chat)
        config = self._config
        if config.max_seq_length is None:
            rows: Any = trainer.train_dataset
            if isinstance(rows, IterableDataset):
                raise UsageError(
                    "a streamed data set tells no longest prompt",
                    hint="make_rollout(EngineConfig(max_seq_length=...))",
                )
            config = with_room(config, trainer.args.max_completion_length, rows, encode, loaded)
        backend = open_live(self._backend, loaded, model, config, self._options, self._lora_mode)
        seed = own_seed(trainer.args.seed, trainer.args.process_index)
        return Rollout(backend, encode, seed)
