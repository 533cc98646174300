"""Rates ρ_i of steps: a number for the same in all of them, or one that falls."""

import abc
from typing import TypeAlias

import equinox as eqx

from partita.inputs import check_finite_number, check_number
from partita.numerics.compiled import Scalar, Whole

__all__ = ["Damping", "Rate", "RobbinsMonro", "rate_at"]


class Rate(eqx.Module):
    """A rate that depends on how many steps there have been."""

    @abc.abstractmethod
    def __call__(self, step: Whole) -> Scalar:
        """The rate of the step that comes after so many."""


Damping: TypeAlias = float | Rate
"""A number is the rate of every step."""


class RobbinsMonro(Rate):
    """ρ_i = first · (1 + i / delay)^(−power), whose sum is infinite and the sum of whose squares is finite.

    With such rates noisy steps converge (Robbins and Monro 1951), to the fixed points of steps without noise
    (`sec:stochastic-approx`).
    """

    first: float = 1.0
    delay: float = 1.0
    """After how many steps the rate has fallen to 2^(−power) of the first."""
    power: float = 1.0
    """Above 1/2 and at most 1."""

    def __check_init__(self) -> None:
        check_finite_number("first rate", self.first, above=0)
        check_finite_number("delay of a rate", self.delay, above=0)
        check_number("power of a rate", self.power, lambda power: 0.5 < power <= 1, "above 1/2 and at most 1")

    def __call__(self, step: Whole) -> Scalar:
        return self.first * (1 + step / self.delay) ** -self.power


def rate_at(damping: Scalar | Rate, step: Whole) -> Scalar:
    """The rate of the step that comes after so many."""
    return damping(step) if isinstance(damping, Rate) else damping
