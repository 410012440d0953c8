"""Whether the longest prompt and its completion fit: into what was asked for, into the model."""

from __future__ import annotations

from flexinfer.errors import UsageError


def check_positions(prompt: int, new_tokens: int, known: int, name: str) -> None:
    """Raise UsageError where `prompt` and `new_tokens` go beyond the positions `known` to a model.

    All in tokens; `name` is the model's. An engine would speak of --max-seq-length, which is what
    these two add up to and nobody's choice.
    """
    if prompt + new_tokens <= known:
        return
    shorter = [f"--max-completion-length {known - prompt}"] * (prompt < known)
    fewer = [f"--max-prompt-length {known - new_tokens}"] * (new_tokens < known)
    hint = " or ".join((*shorter, *fewer)) or "smaller ones of both"
    raise UsageError(
        f"the longest prompt of {prompt} tokens and --max-completion-length {new_tokens} are "
        f"{prompt + new_tokens} tokens, and {name} knows positions of no more than {known}",
        hint=f"give {hint}",
    )


def check_room(prompt: int, new_tokens: int, asked: int | None) -> None:
    """Raise UsageError where --max-seq-length is given (`asked`) and does not hold both."""
    if asked is not None and asked < prompt + new_tokens:
        raise UsageError(
            f"--max-seq-length {asked} does not hold the longest prompt and "
            f"--max-completion-length {new_tokens}, which need {prompt + new_tokens}",
            hint="raise it, or lower --max-prompt-length",
        )


def check_any_room(new_tokens: int, asked: int | None) -> None:
    """Raise UsageError where --max-seq-length (`asked`) leaves no token to any prompt."""
    if asked is not None and asked <= new_tokens:
        raise UsageError(
            f"--max-seq-length {asked} leaves no token to a prompt beside "
            f"--max-completion-length {new_tokens}",
            hint="raise it, or lower --max-completion-length",
        )
