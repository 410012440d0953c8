"""Checks that several rows passed alike, in one line with the worst of their figures."""

from __future__ import annotations

from collections.abc import Sequence

from flexinfer.tasks.bench.compare.agreement import Agreement
from flexinfer.tasks.bench.compare.gate import Gate
from flexinfer.tasks.bench.result import BenchReport, BenchResult

FEW = 2
"""So many rows are told of at once; a single one is told of by itself."""


def passed(row: BenchResult) -> bool:
    """Return whether a row has figures and its output gate found nothing."""
    return row.error is None and row.gate is not None and row.gate.problem is None


def gates_at_once(report: BenchReport) -> list[str]:
    """Return the line for all rows that passed the output gate; none where they are too few."""
    gates = [row.gate for row in report.results if row.gate is not None and passed(row)]
    if len(gates) < FEW:
        return []
    whole = len(report.results)
    rows = f"all {whole} rows" if len(gates) == whole else f"{len(gates)} of {whole} rows"
    return [f"output gate: {rows} passed; at worst {_worst(gates)}"]


def _worst(gates: Sequence[Gate]) -> str:
    """Return each figure of gates as it is worst: the fewest tokens, the largest gap and noise."""
    fewest = min(gates, key=lambda gate: gate.checked)
    dtypes = " and ".join(dict.fromkeys(str(gate.dtype) for gate in gates))
    return (
        f"{fewest.agreed} of {fewest.checked} tokens are the reference's "
        f"({max(gate.skipped_for_margin for gate in gates)} more within the noise of "
        f"{max(gate.noise or 0.0 for gate in gates):.2g} logits in {dtypes}), mean "
        f"log-probability gap {max(gate.mean_logprob_gap or 0.0 for gate in gates):.2g}; "
        f"contexts up to {min(gate.longest_context for gate in gates)} tokens"
    )


def agreements_in_brief(found: Sequence[Agreement]) -> list[str]:
    """Return a line for each pair of rows that part, and one for all others."""
    alike = [one for one in found if one.tokens and one.first is None]
    if len(alike) < FEW:
        return [one.summary for one in found]
    counts = sorted({one.tokens for one in alike})
    tokens = f"all {counts[0]}" if len(counts) == 1 else f"all {counts[0]} to {counts[-1]}"
    told = (
        f"rows of the same work against each other: {tokens} tokens of the probe are the same in "
        f"{len(alike)} of {len(found)} pairs"
    )
    return [told, *(one.summary for one in found if one not in alike)]
