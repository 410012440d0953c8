"""How long a sequence may get and how long a page is: what was asked for, within reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flexinfer.engine.requests.outputs import Request
from flexinfer.errors import UsageError

DEFAULT_MAX_SEQ_LENGTH = 4096
LEAST_PAGE = 8


class Limits(NamedTuple):
    """In tokens: the longest sequence, prompt and new tokens together, and a page of KV cache."""

    longest: int
    page: int
    notices: tuple[str, ...]


def limits(length: int | None, page: int | None, usual: int, known: int, name: str) -> Limits:
    """Return the limits for --max-seq-length `length` and --page-size `page`, None where not given.

    `usual` is the page size of the device, `known` how many positions the model `name` can tell
    apart; raises UsageError where more are asked for.
    """
    if length is not None and length > known:
        raise UsageError(
            f"--max-seq-length {length}: {name} knows positions of no more than {known} tokens",
            hint=f"give {known} or less, or scale its rope (max_position_embeddings, yarn)",
        )
    longest = min(DEFAULT_MAX_SEQ_LENGTH, known) if length is None else length
    enough = max(LEAST_PAGE, 1 << (longest - 1).bit_length())
    if page is None or page <= enough:
        return Limits(longest, page or usual, ())
    said = f"KV pages: of {enough} tokens, not {page}: no sequence has more than {longest}"
    return Limits(longest, enough, (said,))


def known_positions(config: Mapping[str, Any]) -> int:
    """Return how many positions a model tells apart, by its text config as a mapping.

    Scaled rope carries the extended number in max_position_embeddings, unless (yarn, linear) a
    factor was added to the config of the short model, as the makers of Qwen advise.
    """
    positions = int(config["max_position_embeddings"])
    rope = config.get("rope_parameters") or {}
    kind, factor = rope.get("rope_type"), rope.get("factor") or 1.0
    if kind == "yarn":
        original = rope.get("original_max_position_embeddings") or positions
        return max(positions, int(original * factor))
    return int(positions * factor) if kind == "linear" else positions


def refusal(request: Request, longest: int, vocab_size: int) -> str | None:
    """Return why a request cannot be served within `longest` tokens, in one line, or None."""
    ids = request.prompt_token_ids
    if not ids:
        return "the prompt is empty"
    if len(ids) >= longest:
        return (
            f"the prompt has {len(ids)} tokens, which leaves no room for a new one within "
            f"--max-seq-length {longest}"
        )
    if min(ids) < 0 or max(ids) >= vocab_size:
        return f"a prompt token id is outside the vocabulary of {vocab_size}"
    return None
