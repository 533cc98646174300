"""Schedules (step ① of `alg:vmp`): which clients get a task next, and how many answers the server waits for."""

import abc
from typing import Literal, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, Int

from partita.errors import SettingsError
from partita.inputs import check_choice, check_kind, check_whole
from partita.server.measures import Divergence, Measure

__all__ = ["Asynchronous", "Order", "RandomSubset", "Schedule", "ScheduleView", "Sequential", "Synchronous"]

Order = Literal["fixed", "random", "residual"]


class ScheduleView(NamedTuple):
    """The part of the state that a schedule sees."""

    turn: int
    """How many turns there have been."""
    size: Float[np.ndarray, " m"]
    """How large each client's last answer was, by the schedule's `measure`; infinite before the first."""
    age: Int[np.ndarray, " m"]
    """How many turns ago each client last answered."""
    busy: Bool[np.ndarray, " m"]
    """Which clients are busy with an earlier task, or offline."""
    seed: int


class Schedule(eqx.Module):
    """Chooses the clients b_i. The same schedule serves every engine."""

    @abc.abstractmethod
    def select(self, turns: ScheduleView) -> list[int]:
        """The idle clients to send a task to."""

    @property
    def answers_per_step(self) -> int | None:
        """How many answers the server aggregates per step; None for all tasks in flight."""
        return None

    @property
    def measure(self) -> Measure:
        """By what it is told how large an answer is."""
        return Divergence()

    def check(self, clients: int) -> None:
        """Raises an `InputError` if the schedule cannot serve this many clients."""


class Sequential(Schedule):
    """One client at a time, in fixed order, in a new random order each pass, or by residual.

    In residual order the first pass is in fixed order; afterwards the client whose last answer was the largest comes
    next, by the `measure`. Its age, in units of the mean size, is added to prevent starvation.
    """

    order: Order = eqx.field(static=True, default="fixed")
    measure: Measure = Divergence()

    def __check_init__(self) -> None:
        check_choice("order", self.order, ("fixed", "random", "residual"))
        check_kind("measure", self.measure, Measure, "use one of partita.measures")
        if self.order != "residual" and not isinstance(self.measure, Divergence):
            raise SettingsError(
                f'A measure is for residual order, not {self.order} order: use Sequential("residual", …).'
            )

    def select(self, turns: ScheduleView) -> list[int]:
        clients = len(turns.size)
        sweep, place = divmod(turns.turn, clients)
        if self.order == "random":
            return [int(_generator(turns.seed, sweep).permutation(clients)[place])]
        if self.order == "fixed" or sweep == 0:
            return [place]
        # infinite residuals (refused answers) are clipped to the largest finite one and rounding errors to 0, so that
        # no residual exceeds M units and age still prevents starvation
        known = turns.size[np.isfinite(turns.size)]
        residual = np.clip(turns.size, 0.0, known.max(initial=0.0))
        unit = max(residual.mean(), np.finfo(float).tiny)
        return [int(np.argmax(np.where(turns.busy, -np.inf, residual / unit + turns.age)))]


class Synchronous(Schedule):
    """All clients at once, and the server waits for all of them."""

    def select(self, turns: ScheduleView) -> list[int]:
        return list(range(len(turns.size)))


class RandomSubset(Schedule):
    """A random subset of the clients in each turn."""

    size: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        check_whole("size of a subset", self.size, 0)

    def check(self, clients: int) -> None:
        if not 1 <= self.size <= clients:
            raise SettingsError(f"A subset of {clients} clients has 1 to {clients} members, not {self.size}.")

    def select(self, turns: ScheduleView) -> list[int]:
        clients = len(turns.size)
        return sorted(int(k) for k in _generator(turns.seed, turns.turn).choice(clients, self.size, replace=False))


class Asynchronous(Schedule):
    """Every client is always busy; each answer is aggregated on arrival and its client is sent the new posterior."""

    @property
    def answers_per_step(self) -> int | None:
        return 1

    def select(self, turns: ScheduleView) -> list[int]:
        return [int(k) for k in np.flatnonzero(~turns.busy)]


def _generator(seed: int, turn: int) -> np.random.Generator:
    return np.random.default_rng([seed, turn])
