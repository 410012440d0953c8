"""What `--reward` may say: a built-in name, or module:function."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from flexinfer.errors import UsageError
from flexinfer.tasks.grpo.problems.problem_set import Problems
from flexinfer.tasks.grpo.rewards import symbolic
from flexinfer.tasks.grpo.rewards.answer import answer, numbers
from flexinfer.tasks.grpo.rewards.exact import exact_answer
from flexinfer.tasks.grpo.rewards.format import format_approximate, format_exact
from flexinfer.tasks.grpo.rewards.length import length
from flexinfer.tasks.grpo.rewards.sample import Builtin, RewardFunc
from flexinfer.tasks.grpo.rewards.user import user_reward

_ALL = (
    Builtin("format-exact", format_exact, needs_answer=False),
    Builtin("format-approximate", format_approximate, needs_answer=False),
    Builtin("answer", answer),
    Builtin("numbers", numbers),
    Builtin("exact-answer", exact_answer),
    Builtin("length", length, needs_answer=False, needs_tokens=True),
    Builtin(symbolic.NAME, symbolic.symbolically_equal),
)
BUILTIN: Mapping[str, Builtin] = MappingProxyType({reward.name: reward for reward in _ALL})
"""Name -> built-in reward."""


def choose_rewards(names: Sequence[str]) -> list[RewardFunc]:
    """Return the rewards `names` mean, each called as it was named; none may be named twice.

    Raises UsageError, EnvironmentUnfit where one needs a package that is missing.
    """
    if not names:
        raise UsageError("no --reward is given", hint="known: " + ", ".join(BUILTIN))
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"--reward {repeated} is given twice")
    return [_reward(name) for name in names]


def check_answers(rewards: Sequence[RewardFunc], problems: Problems) -> None:
    """Raise UsageError where a built-in reward needs answers and no problem has one."""
    if any(row.get("answer") is not None for row in problems.rows):
        return
    for reward in rewards:
        if isinstance(reward, Builtin) and reward.needs_answer:
            raise UsageError(
                f"--reward {reward.name} needs answers, which {problems.name} does not have",
                hint="add `answer` to its rows, or choose another --reward",
            )


def _reward(name: str) -> RewardFunc:
    """Return the reward of a name."""
    if ":" in name:
        return user_reward(name)
    if name == symbolic.NAME:
        symbolic.require()
    if name in BUILTIN:
        return BUILTIN[name]
    near = difflib.get_close_matches(name.lower(), BUILTIN, n=1, cutoff=0.5)
    known = f"known: {', '.join(BUILTIN)}, module:function"
    raise UsageError(
        f"--reward {name!r} is unknown", hint=f"did you mean {near[0]}? {known}" if near else known
    )
