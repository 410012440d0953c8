"""`answer` and `numbers`: how near the solution between the markers comes to the right answer.

With the two of the format these are the rewards of the GRPO benchmark; together -7.5 to 13.
"""

from __future__ import annotations

from fractions import Fraction

from flexinfer.tasks.grpo.rewards.numbers import first_number, read_number
from flexinfer.tasks.grpo.rewards.sample import Sample
from flexinfer.tasks.grpo.rewards.sections import exact_solution, solution

RIGHT, RIGHT_BUT_BLANKS = 5.0, 3.5
NEAR, NEARER = (Fraction(1, 5), 1.5), (Fraction(1, 10), 2.0)
"""(relative distance, reward) of a number that is close."""
WRONG, NO_NUMBER, NO_SOLUTION = -2.5, -4.5, -2.0


def answer(sample: Sample) -> float:
    """Return 5 for the right answer, 3.5 but for blanks, 2 within 10 %, 1.5 within 20 %.

    A wrong number costs 2.5, what is no number 4.5, no solution in the exact format 2.
    """
    assert sample.answer is not None
    guess = exact_solution(sample.text)
    if guess is None:
        return NO_SOLUTION
    if guess == sample.answer:
        return RIGHT
    if guess.strip() == sample.answer.strip():
        return RIGHT_BUT_BLANKS
    return _nearness(read_number(guess), read_number(sample.answer))


def numbers(sample: Sample) -> float | None:
    """Return 3.5 where the solution's first number is the answer, -1.5 where not, -2.5 for none.

    The solution need not be closed. Where the answer is no number there is no opinion.
    """
    assert sample.answer is not None
    right = read_number(sample.answer)
    if right is None:
        return None
    guess = first_number(solution(sample.text) or "")
    if guess is None:
        return -2.5
    return 3.5 if guess == right else -1.5


def _nearness(guess: Fraction | None, right: Fraction | None) -> float:
    """Reward a guess that is not the answer to the letter, by its ratio to it."""
    if guess is None or right is None:
        return NO_NUMBER
    distance = abs(guess - right)
    for share, reward in (NEARER, NEAR):
        if distance <= share * abs(right):
            return reward
    return WRONG
