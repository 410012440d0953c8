"""What tells two sets of problems apart, by all that a trainer sees of them."""

from __future__ import annotations

import json
from hashlib import sha256

from flexinfer.tasks.grpo.problems.problem_set import Problems


def digest(problems: Problems) -> str:
    """Return the SHA-256 of the rows that are trained on, in their order; columns have none."""
    made = sha256()
    for row in problems.rows:
        made.update(json.dumps({**row}, sort_keys=True, default=str).encode() + b"\n")
    return made.hexdigest()
