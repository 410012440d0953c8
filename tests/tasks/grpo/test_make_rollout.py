"""`flexinfer.trl`: the engine under a trainer of one's own, with and without an adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from trl import GRPOConfig, GRPOTrainer

from flexinfer.config import EngineConfig
from flexinfer.errors import UsageError
from flexinfer.tasks.grpo.training.correction import GAP
from flexinfer.trl import OnPolicyGRPOTrainer, make_rollout
from tests.support.engines import toy_tokenizer
from tests.support.grpo import PROMPTS, logged, varied
from tests.support.rollouts import fresh

DENSE = {"attention": "dense"}


def trainer(folder: Path, kind: type[Any], model: Any, rollout: Any, data: Any = None) -> Any:
    """Build a trainer as its owner would."""
    arguments = GRPOConfig(
        output_dir=str(folder),
        max_steps=2,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=6,
        learning_rate=1e-2,
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )
    return kind(
        model=model,
        reward_funcs=[varied],
        args=arguments,
        train_dataset=data or Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS]),
        processing_class=toy_tokenizer(),
        rollout_func=rollout,
    )


@pytest.mark.parametrize("adapted", [True, False])
@pytest.mark.parametrize("family", ["qwen3", "gemma4"])
def test_it_rolls_out_the_owners_policy(family: str, adapted: bool, tmp_path: Path) -> None:
    model = fresh(family)
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, lora) if adapted else model
    rollout = make_rollout(EngineConfig(**DENSE), chat_template="none")
    made = trainer(tmp_path, OnPolicyGRPOTrainer, model, rollout)
    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    made.train()
    gaps = logged(made, f"{GAP}/mean")
    assert len(gaps) == 2
    assert max(gaps) <= 1e-4
    assert any(not p.equal(before[name]) for name, p in model.named_parameters() if name in before)
    rollout.close()


def test_trls_own_trainer_takes_it(tmp_path: Path) -> None:
    rollout = make_rollout(EngineConfig(**DENSE), chat_template="none")
    made = trainer(tmp_path, GRPOTrainer, fresh("qwen3"), rollout)
    made.train()
    assert made.state.global_step == 2
    assert rollout.rollout is not None
    assert rollout.rollout.version == 1


def test_other_back_ends_take_its_place(tmp_path: Path) -> None:
    torch.manual_seed(0)
    rollout = make_rollout(EngineConfig(), backend="hf", chat_template="none")
    made = trainer(tmp_path, OnPolicyGRPOTrainer, fresh("qwen3"), rollout)
    made.train()
    assert made.state.global_step == 2


def test_what_a_back_end_runs_is_there_to_be_asked(tmp_path: Path) -> None:
    """With what it learned by running; the owner of the trainer decides who hears it."""
    rollout = make_rollout(EngineConfig(), backend="hf-cb", chat_template="none")
    assert rollout.notices == ()
    trainer(tmp_path, OnPolicyGRPOTrainer, fresh("qwen3"), rollout).train()
    ran = [line for line in rollout.notices if line.startswith("continuous batching ran with")]
    assert len(ran) == 1
    assert "device: cpu" in rollout.notices
    rollout.close()
    assert rollout.notices == ()


def test_a_streamed_data_set_needs_a_length(tmp_path: Path) -> None:
    data = Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS]).to_iterable_dataset()
    rollout = make_rollout(EngineConfig(**DENSE), chat_template="none")
    made = trainer(tmp_path, OnPolicyGRPOTrainer, fresh("qwen3"), rollout, data)
    with pytest.raises(UsageError, match="tells no longest prompt"):
        made.train()
    sized = make_rollout(EngineConfig(max_seq_length=64, **DENSE), chat_template="none")
    trainer(tmp_path, OnPolicyGRPOTrainer, fresh("qwen3"), sized, data).train()
