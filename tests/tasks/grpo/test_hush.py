"""What libraries say is left out where only their caller could change it, and nothing else."""

from __future__ import annotations

import logging
import os

import pytest
from transformers.trainer_utils import logger

from flexinfer.backends.vllm.log import UNHEARD
from flexinfer.tasks.grpo.training.hush import NO_NEWS, hushed

OTHER_STEPS = NO_NEWS[logger.name]


def test_a_longer_run_is_no_news_about_its_checkpoints(caplog: pytest.LogCaptureFixture) -> None:
    logger.addHandler(caplog.handler)
    with hushed(), caplog.at_level(logging.WARNING):
        logger.warning(f"Warning: The following arguments {OTHER_STEPS} within")
        logger.warning("something else")
    logger.warning(f"{OTHER_STEPS}: outside")
    logger.removeHandler(caplog.handler)
    told = {record.getMessage() for record in caplog.records}
    assert told == {"something else", f"{OTHER_STEPS}: outside"}


def test_it_is_what_transformers_says(caplog: pytest.LogCaptureFixture) -> None:
    """A resumed run with other --save-steps makes it say so; the words are pinned here."""
    from types import SimpleNamespace

    from transformers.trainer_utils import compare_trainer_and_checkpoint_args

    logger.addHandler(caplog.handler)
    state = SimpleNamespace(save_steps=1, train_batch_size=1)
    args = SimpleNamespace(save_steps=7919, per_device_train_batch_size=1, n_gpu=1)
    compare_trainer_and_checkpoint_args(args, state)
    logger.removeHandler(caplog.handler)
    (line,) = {record.getMessage() for record in caplog.records}
    assert OTHER_STEPS in line


def test_vllm_which_trl_imports_does_not_log_to_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.delenv("VLLM_LOGGING_STREAM", raising=False)
    with hushed():
        assert os.environ["VLLM_LOGGING_STREAM"] == "ext://sys.stderr"
        assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG", "the user's own stays"
    assert "VLLM_LOGGING_STREAM" not in os.environ


def test_errors_are_told_whoever_is_hushed(caplog: pytest.LogCaptureFixture) -> None:
    held = logging.getLogger(UNHEARD[0])
    with caplog.at_level(logging.WARNING):
        with hushed():
            held.warning("no chat template")
            held.error("broken")
        held.warning("outside")
    assert [record.getMessage() for record in caplog.records] == ["broken", "outside"]
