"""From tiles of queries to whole chunks, as a varlen attention function wants them.

Everything is computed on the device with shapes that depend on the number of tiles alone, so a
captured graph of a padded batch stays right.

Shape letters: N tiles of Q queries, P page columns.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad


class Spans(NamedTuple):
    """Chunks of packed queries, one entry a tile; a chunk stands at its last tile. All int32.

    `starts` [N + 1]: queries [starts[n], starts[n + 1]) of the packed tokens are entry n's, none
    where a chunk goes on in the next tile. `seen` [N]: keys that the entry's last query sees, each
    query before it one less. `pages` [N, P]: the page-table row.
    """

    starts: Tensor
    seen: Tensor
    pages: Tensor


def spans_of(rows_NP: Tensor, positions_NQ: Tensor, page: int) -> Spans:
    """Join the tiles of each chunk; `positions` int64 of the queries, -1 for padding.

    Tiles lie in the order of the packed tokens, and a chunk's fill up one after another. Where
    rows and positions go on, the queries see the same keys joined or apart. A padded batch ends
    with tiles whose queries all stand at 0: they are let see as many keys as there are queries
    (their row lists the scratch page throughout), so that none sees nothing.
    """
    length_N = (positions_NQ >= 0).sum(1)
    first_N = positions_NQ[:, 0]
    goes_on = (first_N[1:] > 0) & (first_N[1:] == positions_NQ[:-1, -1] + 1)
    goes_on &= (rows_NP[1:] == rows_NP[:-1]).all(1)
    ends = torch.cat((~goes_on, goes_on.new_ones(1)))
    closed = torch.where(ends, length_N.cumsum(0), 0).cummax(0).values
    starts = pad(closed, (1, 0))
    seen = torch.maximum(positions_NQ.amax(1) + 1, starts.diff())
    short = max(-(-positions_NQ.shape[1] // page) - rows_NP.shape[1], 0)
    return Spans(starts.int(), seen.int(), pad(rows_NP, (0, short)))
