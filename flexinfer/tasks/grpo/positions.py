"""Whether a model tells apart as many positions as the longest prompt and its completion need."""

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
