"""Logits that are not finite: whose samples end for it, and which KV must not outlive them.

A masked key is multiplied by zero, and zero times NaN is NaN: a page that holds one would spoil
whoever gets it next, even at positions that are never attended to.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

import torch

from flexinfer.core.pages import PagePool
from flexinfer.core.sequence import Sequence as Row
from flexinfer.engine.steps.programs import Programs

NOT_FINITE = "the model's logits are not finite; a wider --dtype may cure it"


def finite(logprob: float, policy_logprob: float) -> bool:
    """Tell whether a token was sampled from a distribution at all.

    A NaN or an infinity among a row's logits makes the sum of its softmax one, hence both numbers.
    """
    return math.isfinite(logprob) and math.isfinite(policy_logprob)


def doomed(row: Row, rows: Iterable[Row]) -> list[Row]:
    """Return the unfinished rows that end with `row`: those of its request.

    Other requests of the same prompt are judged by what becomes of themselves: it may be the
    settings of this one that are to blame.
    """
    return [other for other in rows if not other.finished and other.key[0] == row.key[0]]


def scrub(rows: Sequence[Row], pool: PagePool, programs: Programs) -> None:
    """Zero the pages of `rows` and those that their group keeps, but for what others hold too.

    The rows, of one request, are about to finish and their group to forget its pages. Others can
    hold no more than full pages of the prompt, which none of the rows writes to. It comes after
    what is in flight and before what is launched next, by stream order.
    """
    held = Counter(chain(rows[0].group.pages, *(row.pages for row in rows)))
    freed = [page for page, count in held.items() if pool.references(page) == count]
    size = pool.page_size
    _zero([page * size + offset for page in freed for offset in range(size)], programs)


def _zero(addresses: list[int], programs: Programs) -> None:
    """Zero those positions of every pool."""
    where = torch.tensor(addresses, dtype=torch.int64, device=programs.tables.table.device)
    for spec in programs.decode_decoder.specs:
        if spec.owns_kv:
            for pool in programs.cache.layer(spec):
                pool[:, :, where] = 0
