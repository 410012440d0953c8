"""One sample on its way from prompt to last token, and the group of samples of one prompt."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Group:
    """The samples of one prompt: one of them (the leader) prefills it, the others use its pages.

    `pages` are held by the group itself once the prompt is launched and cover its tokens but the
    last, [0, len(prompt) - 1); empty before. `unfinished` counts the samples still to finish.
    """

    prompt: tuple[int, ...]
    pages: list[int] = field(default_factory=list)
    leader: Sequence | None = None
    unfinished: int = 0

    @property
    def shared(self) -> int:
        """Tokens that samples can share: all but the last, whose logits each needs."""
        return len(self.prompt) - 1


@dataclass(eq=False, slots=True)
class Sequence:
    """One sample: what is known of it, what is launched, and where its KV lies.

    `key` is (request index, sample index); `max_new_tokens` is already capped, so that prompt and
    new tokens fit the engine's longest sequence. `tokens` are generated and committed, `pending`
    counts tokens sampled on the device that the host has not read, `computed` the positions whose
    KV is launched. `slot` and `pages` are held while it runs.
    """

    group: Group
    max_new_tokens: int
    key: tuple[int, int] = (0, 0)
    prompt: tuple[int, ...] = field(init=False)
    tokens: list[int] = field(default_factory=list)
    pending: int = 0
    computed: int = 0
    slot: int | None = None
    pages: list[int] = field(default_factory=list)
    finished: bool = False

    def __post_init__(self) -> None:
        """Take the prompt from the group, so that all samples of a group have the same."""
        assert self.group.prompt, "an empty prompt"
        assert self.max_new_tokens > 0, self.max_new_tokens
        self.prompt = self.group.prompt

    @property
    def length(self) -> int:
        """Tokens of the prompt and after it, those on the device included."""
        return self.known + self.pending

    @property
    def known(self) -> int:
        """Tokens of the prompt and after it that the host knows."""
        return len(self.prompt) + len(self.tokens)

    @property
    def wants_token(self) -> bool:
        """Whether fewer than `max_new_tokens` tokens are launched."""
        return len(self.tokens) + self.pending < self.max_new_tokens

    @property
    def final_kv(self) -> int:
        """Positions whose KV it writes at most; the last token needs none."""
        return len(self.prompt) + self.max_new_tokens - 1

    def token_ids(self, start: int, end: int) -> tuple[int, ...]:
        """Ids at the positions [start, end), all of which the host knows."""
        n = len(self.prompt)
        return self.prompt[start:end] + tuple(self.tokens[max(start - n, 0) : max(end - n, 0)])
