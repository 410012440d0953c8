"""The names under which the installed transformers has continuous batching.

They change from release to release, so its own classes are asked, here and nowhere else: a page's
size was `block_size` before 5.18, and before 5.20 flash attention was switched to unasked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

from transformers import ContinuousBatchingConfig

from flexinfer.errors import EnvironmentUnfit

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OLDER = {"page_size": "block_size"}
"""A setting -> what it was called before."""
NEEDED = frozenset({"page_size", "max_requests_per_batch", "return_logprobs", "seed"})
"""What no release may be without, told before any weights are loaded."""
TELLS = "fail_and_deliver"
SWITCH = "auto_switch_to_flash"
PAGED = "paged|"


class Work(NamedTuple):
    """What a manager is sized for: tokens of the longest prompt and completion, and samples."""

    max_prompt_length: int
    max_generated_length: int
    num_requests: int

    @property
    def longest(self) -> int:
        """The most tokens of a sequence."""
        return self.max_prompt_length + self.max_generated_length


def check_continuous_batching() -> None:
    """Raise EnvironmentUnfit where transformers' continuous batching is not the one driven here.

    Before 5.17 its loop could end without a word to the requests that were in it.
    """
    batching_config(dict.fromkeys(NEEDED))
    workload_hints(Work(0, 0, 0))
    from transformers.generation.continuous_batching.continuous_api import OutputRouter

    if TELLS not in vars(OutputRouter):
        raise _unfit(f"OutputRouter.{TELLS}")


def batching_config(settings: Mapping[str, Any]) -> ContinuousBatchingConfig:
    """Return the settings under their names here; raises EnvironmentUnfit for an unknown one.

    `auto_switch_to_flash` may be given to every release: see `hold_attention`.
    """
    known = _known()
    given = {
        name if name in known else OLDER.get(name, name): value
        for name, value in settings.items()
        if name != SWITCH or name in known
    }
    if missing := sorted(given.keys() - known):
        raise _unfit(" and no ".join(missing))
    return ContinuousBatchingConfig(**given)


def workload_hints(work: Work) -> Any:
    """Return transformers' own record of the work; raises EnvironmentUnfit where it has none."""
    try:
        from transformers.generation.continuous_batching.utils import WorkloadHints
    except ImportError:
        raise _unfit("WorkloadHints") from None
    return WorkloadHints(**work._asdict())


def hold_attention(module: PreTrainedModel) -> None:
    """Keep a lent module's attention where transformers has no setting against flash attention.

    The releases without `auto_switch_to_flash` leave a name alone that begins with `paged|`.
    """
    own = module.config._attn_implementation
    if SWITCH not in _known() and not own.startswith(PAGED):
        module.set_attn_implementation(PAGED + own)


def _known() -> set[str]:
    """Return the settings that the installed release has."""
    return {field.name for field in fields(ContinuousBatchingConfig)}


def _unfit(missing: str) -> EnvironmentUnfit:
    """Return what to raise for a name that the installed release does not have."""
    return EnvironmentUnfit(
        f"hf-cb: the continuous batching of transformers {version('transformers')} has no "
        f"{missing}",
        hint='pip install "transformers>=5.17", or take another back end',
    )
