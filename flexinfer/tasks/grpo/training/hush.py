"""Keeps libraries from telling users what only their callers can change."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

NO_NEWS = {
    # on import, which PEFT does, of a CPU kernel for 4-bit that nobody asked for
    "bitsandbytes.backends.cpu.ops": "",
    # of a --save-steps other than the checkpoint's, which a resumed run may choose anew: without
    # that option it follows --max-steps, so that it differs wherever a run is made longer
    "transformers.trainer_utils": "do not match the ones in the `trainer_state.json`",
    # of a process group that vLLM made for itself alone
    "transformers.training_args": "torch.distributed process group is initialized, but",
}
"""Warnings that nobody is to hear, beside vLLM's: by their logger, those that contain a text."""
VLLM = {"VLLM_LOGGING_STREAM": "ext://sys.stderr", "VLLM_LOGGING_LEVEL": "WARNING"}
"""TRL imports vLLM where it is installed, which then logs to stdout."""


def _news_but(text: str) -> Callable[[logging.LogRecord], bool]:
    """Return what tells whether a line is to be told."""
    return lambda line: line.levelno >= logging.ERROR or text not in line.getMessage()


@contextmanager
def hushed() -> Iterator[None]:
    """Ignore deprecations inside transformers and TRL, and what concerns nobody, meanwhile."""
    from flexinfer.backends.vllm.log import UNHEARD, variables

    with ExitStack() as after, warnings.catch_warnings(), variables(VLLM):
        for name, text in (NO_NEWS | dict.fromkeys(UNHEARD, "")).items():
            logger, news = logging.getLogger(name), _news_but(text)
            logger.addFilter(news)
            after.callback(logger.removeFilter, news)
        # PEFT looks for the base model's vocabulary, which is nowhere for random weights
        warnings.filterwarnings("ignore", message="Could not find a config file in")
        warnings.filterwarnings("ignore", message="Unable to fetch remote file")
        for library in ("transformers", "trl"):
            warnings.filterwarnings("ignore", category=FutureWarning, module=library)
        yield
