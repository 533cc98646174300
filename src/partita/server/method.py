"""What a method is: one member of each axis that tells methods apart."""

import equinox as eqx
import numpy as np

from partita.errors import SettingsError
from partita.families import Family
from partita.hyper.learning import Learning
from partita.local.client import Recipe
from partita.local.context import Cavity, Context
from partita.local.solvers import Solver
from partita.models import Model
from partita.server.aggregation import Aggregation, Damped
from partita.server.schedules import Schedule, Sequential, Turns


class Method(eqx.Module):
    """One member of each axis that tells methods apart; `partita.methods` names some compositions."""

    solver: Solver
    schedule: Schedule = Sequential()
    aggregation: Aggregation = Damped()
    context: Context = Cavity()
    trust_region: float = 1.0
    start: Family | None = None
    """Where clients begin to climb while the posterior is still the prior; None for there."""
    passes: int | None = eqx.field(static=True, default=None)
    """How often each client answers in all; None for as often as it takes."""
    anew: bool = eqx.field(static=True, default=False)
    """Whether clients begin at `start` in every visit."""
    temperature: float = 1.0
    """By what every KL divergence is multiplied: 1 is Bayes, and less is colder. The history says so."""
    learning: Learning | None = None
    """Which hyperparameters are learned, and how; none when None."""

    def __check_init__(self) -> None:
        if not 0 < self.temperature < np.inf:
            raise SettingsError(f"The temperature is a number above 0, not {self.temperature}.")
        if self.anew and self.start is None:
            raise SettingsError("To begin every visit anew takes a start: give one.")

    def check(self, prior: Family, clients: int) -> None:
        """Raises an `InputError` if it cannot run with this prior and this many clients."""
        self.schedule.check(clients)
        self.aggregation.check(clients, self.answers(clients), self.solver.matched_power)
        if self.learning is not None and self.solver.estimates_evidence:
            raise SettingsError("Power EP has no bound to learn hyperparameters by: use sequential PVI, say.")
        if self.learning is not None and self.passes is not None:
            raise SettingsError("A method of one pass does not come back to learn hyperparameters: use another.")
        if self.learning is not None and self.context.repeats:
            raise SettingsError(
                "Hyperparameters have no bound where rows count anew at every visit: use sequential PVI, say."
            )
        if self.start is not None:
            self.start.fitting(prior, "start")

    def answers(self, clients: int) -> int:
        """How many answers the server takes in at a time."""
        first = Turns(0, np.full(clients, np.inf), np.zeros(clients, int), np.zeros(clients, bool), 0)
        return self.schedule.awaits or len(self.schedule.select(first))

    def recipe(self, model: Model) -> Recipe:
        """What the clients need to know of it."""
        learned = self.learning.names if self.learning else ()
        about = (self.context, self.trust_region, self.start, self.anew, self.temperature, learned)
        return Recipe(model, self.solver, *about)
