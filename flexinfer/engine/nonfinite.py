"""Logits that are not finite: whose samples end for it, and which KV must not outlive them.

A masked key is multiplied by zero, and zero times NaN is NaN: a page that holds one would spoil
whoever gets it next, even at positions that are never attended to.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from flexinfer.core.pages import PagePool
from flexinfer.core.sequence import Sequence as Row
from flexinfer.engine.programs import Programs

NOT_FINITE = "the model's logits are not finite"


def finite(logprob: float, policy_logprob: float) -> bool:
    """Tell whether a token was sampled from a distribution at all.

    A NaN or an infinity among a row's logits makes the sum of its softmax one, hence both numbers.
    """
    return math.isfinite(logprob) and math.isfinite(policy_logprob)


def doomed(row: Row, rows: Iterable[Row]) -> list[Row]:
    """Return the unfinished rows that end with `row`: those of its request.

    If it is its first token, the prompt itself is to blame: then all rows of that prompt.
    """
    unfinished = [other for other in rows if not other.finished]
    if len(row.tokens) == 1:
        return [other for other in unfinished if other.group is row.group]
    return [other for other in unfinished if other.key[0] == row.key[0]]


def scrub(rows: Sequence[Row], pool: PagePool, programs: Programs) -> None:
    """Zero the KV of `rows`, all about to finish, but for what others go on reading.

    It comes after what is in flight and before what is launched next, by stream order.
    """
    held = Counter(page for row in rows for page in row.pages)
    for group in {row.group for row in rows}:
        if group.unfinished == sum(row.group is group for row in rows):
            held.update(group.pages)
    size = pool.page_size
    spans: list[range] = []
    for row in rows:
        for column, page in enumerate(row.pages):
            others = pool.references(page) > held[page]
            begin = min(max(row.group.shared - column * size, 0), size) if others else 0
            spans.append(range(page * size + begin, (page + 1) * size))
    _zero([address for span in spans for address in span], programs)


def _zero(addresses: list[int], programs: Programs) -> None:
    """Zero those positions of every pool."""
    where = torch.tensor(addresses, dtype=torch.int64, device=programs.tables.table.device)
    for spec in programs.decode_decoder.specs:
        if spec.owns_kv:
            for pool in programs.cache.layer(spec):
                pool[:, :, where] = 0
