"""Back ends held against each other: what one chose on the probe, the others should choose too.

Each is judged by the module over the same weights where it shows one (see gate); this is for
all of them, those in another process included. Where two part, the reference of either may say that
its token leads by more than the noise: then the other is wrong, and not merely rounded otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HELD = "output gate: no module here; held against the other back ends alone"


@dataclass(frozen=True)
class ProbeSample:
    """Greedy tokens of one prompt; `clear` where the reference stands by the token of that place.

    `clear` is empty where there was no reference. `prompt_digest` is of the prompt's ids: back ends
    that count a vocabulary otherwise draw other prompts of the same lengths.
    """

    prompt_tokens: int
    token_ids: tuple[int, ...]
    clear: tuple[bool, ...] = ()
    prompt_digest: str = ""

    def stands(self, position: int) -> bool:
        """Whether the reference prefers the token there by more than its noise."""
        return bool(self.clear) and self.clear[position]


@dataclass(frozen=True, kw_only=True)
class Parting:
    """Where two back ends first differ: new token `position` of a `sample` (from 0)."""

    sample: int
    prompt_tokens: int
    position: int
    token: int
    other_token: int
    clear: bool


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """One row's probe against another's: `agreed` of `tokens` come before samples part.

    `first` is the first parting, one at a clear margin before others; `wrong` says that the margin
    was clear and that both computed with the same weights. `note` is why there is no comparison.
    """

    label: str
    against: str
    samples: int = 0
    tokens: int = 0
    agreed: int = 0
    parted: int = 0
    first: Parting | None = None
    wrong: bool = False
    note: str = ""

    @property
    def summary(self) -> str:
        """One line for the reader of the figures."""
        head = f"{self.label} against {self.against}: "
        if self.note and not self.tokens:
            return head + self.note
        if self.first is None:
            return f"{head}all {self.tokens} tokens of the probe are the same"
        at, why = self.first, "at a clear margin" if self.first.clear else "within the noise"
        said = (
            f"{head}{self.parted} of {self.samples} samples part, after {self.agreed} of "
            f"{self.tokens} tokens; first: sample {at.sample} (prompt of {at.prompt_tokens} "
            f"tokens), new token {at.position}: {at.token}, there {at.other_token} ({why})"
        )
        return f"{said}; {self.note}" if self.note else said


def held_against(
    label: str,
    against: str,
    samples: Sequence[ProbeSample],
    others: Sequence[ProbeSample],
    note: str = "",
) -> Agreement:
    """Compare two probes of the same prompts; with a `note` differences are told, never a fault."""
    asked, there = ([(x.prompt_tokens, x.prompt_digest) for x in by] for by in (samples, others))
    if asked != there:
        return Agreement(label=label, against=against, note="their probes are of other prompts")
    partings = [
        found
        for number, pair in enumerate(zip(samples, others, strict=True))
        if (found := _parting(number, *pair)) is not None
    ]
    lost = sum(len(samples[at.sample].token_ids) - at.position for at in partings)
    tokens = sum(len(one.token_ids) for one in samples)
    first = next((at for at in partings if at.clear), partings[0] if partings else None)
    return Agreement(
        label=label,
        against=against,
        samples=len(samples),
        tokens=tokens,
        agreed=tokens - lost,
        parted=len(partings),
        first=first,
        wrong=first is not None and first.clear and not note,
        note=note,
    )


def _parting(number: int, one: ProbeSample, other: ProbeSample) -> Parting | None:
    """Return where two samples of a prompt part, None where they do not."""
    for position, (token, there) in enumerate(zip(one.token_ids, other.token_ids, strict=False)):
        if token != there:
            return Parting(
                sample=number,
                prompt_tokens=one.prompt_tokens,
                position=position,
                token=token,
                other_token=there,
                clear=one.stands(position) or other.stands(position),
            )
    return None
