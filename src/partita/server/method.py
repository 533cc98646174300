"""A method: one choice for each axis (solver, schedule, aggregation, context, learning)."""

import dataclasses

import equinox as eqx
import numpy as np

from partita.errors import SettingsError
from partita.families import Family
from partita.hyper.learning import Learning
from partita.hyper.values import PRIOR_SCALES
from partita.inputs import check_kind, check_whole
from partita.local.client import ClientSettings, Recipe
from partita.local.solvers import Solver
from partita.models import Model
from partita.server.aggregation import Aggregation, Damped
from partita.server.schedules import Schedule, ScheduleView, Sequential

__all__ = ["Axes", "Method"]


class Axes(eqx.Module):
    """The axes by which methods differ most, which are given by position before a client's settings."""

    solver: Solver
    schedule: Schedule = Sequential()
    aggregation: Aggregation = Damped()

    def __check_init__(self) -> None:
        check_kind("solver", self.solver, Solver, "use one of partita.solvers")
        check_kind("schedule", self.schedule, Schedule, "use one such as Sequential()")
        check_kind("aggregation", self.aggregation, Aggregation, "use one such as Damped()")


class Method(ClientSettings, Axes):
    """One choice for each axis; `partita.methods` has named compositions."""

    passes: int | None = eqx.field(static=True, default=None)
    """The number of passes over the clients; None for until convergence."""
    learning: Learning | None = None
    """Which hyperparameters are learned, and how; none when None."""

    def __check_init__(self) -> None:
        if self.passes is not None:
            check_whole("number of passes", self.passes)
        if self.learning is not None:
            check_kind("learning", self.learning, Learning, "use one of partita.learning")

    def check(self, prior: Family, clients: int) -> None:
        """Raises an `InputError` if it cannot run with this prior and this many clients."""
        self.schedule.check(clients)
        self.schedule.measure.check(prior)
        self.aggregation.check(clients, self.answers(clients), self.solver.matched_power)
        if self.aggregation.guarded and self.solver.estimates_evidence:
            raise SettingsError("Power EP climbs no free energy that damping could follow: use Damped(…) instead.")
        if self.learning is not None and self.solver.estimates_evidence:
            raise SettingsError("Power EP has no bound to learn hyperparameters with: use PVI, such as sequential.")
        if self.learning is not None and self.passes is not None:
            raise SettingsError("A method with a fixed number of passes cannot learn hyperparameters: use another.")
        if self.learning is not None and self.context.repeats:
            raise SettingsError(
                "Without the deletion step there is no bound to learn hyperparameters with: use PVI instead."
            )
        if not prior.exponential:
            self._check_ratios(type(prior).__name__, clients)
        if self.start is not None:
            self.start.fitting(prior, "start")

    def _check_ratios(self, family: str, clients: int) -> None:
        """Raises a `SettingsError` where factors that are ratios of densities would have to be more than that."""
        if self._selected(clients) > 1 or not self.aggregation.undamped:
            raise SettingsError(
                f"Factors of an {family} are ratios of densities, which can be neither damped nor multiplied with each "
                "other: use methods.sequential(), undamped, or an exponential family."
            )
        if self.context.takes_prior or self.restart:
            raise SettingsError(
                f"Factors of an {family} are ratios of the posteriors that were visited, so every visit must begin at "
                "the posterior: use methods.sequential(), without restart."
            )

    def check_outside(self) -> None:
        """Raises a `SettingsError` if it cannot run with a prior that is not in q's family."""
        if self.context.takes_prior or self.aggregation.shares_factor:
            raise SettingsError(
                "This method needs a prior in q's family: use a Gaussian prior, or another method, such as "
                "methods.sequential()."
            )
        if self.learning is not None and (scales := [name for name in self.learning.names if name in PRIOR_SCALES]):
            raise SettingsError(
                f"A prior outside q's family has no {scales[0]} to learn: infer its scale instead, as in "
                '"normal(0, half_normal(1))".'
            )

    def answers(self, clients: int) -> int:
        """How many answers the server aggregates per step."""
        return self.schedule.answers_per_step or self._selected(clients)

    def _selected(self, clients: int) -> int:
        """How many clients have tasks at once."""
        first = ScheduleView(0, np.full(clients, np.inf), np.zeros(clients, int), np.zeros(clients, bool), 0)
        return len(self.schedule.select(first))

    def recipe(self, model: Model) -> Recipe:
        """The part of the method that clients need."""
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(ClientSettings)}
        return Recipe(model=model, solver=self.solver, learned=self.learning.names if self.learning else (), **settings)
