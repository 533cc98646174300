"""What named methods share: settings that all of them have."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypedDict

import optax

from partita.errors import SettingsError
from partita.families import Family
from partita.hyper.learning import How, Learning, learning_by_name
from partita.inputs import check_choice, check_flag, check_texts
from partita.local.context import Cavity, Context
from partita.local.solvers import Newton, Solver
from partita.server import aggregation as server
from partita.server.method import Method
from partita.server.schedules import Schedule

__all__ = ["NEWTON", "Common", "Optimiser", "Start", "composed", "product"]

Optimiser: TypeAlias = Callable[..., optax.GradientTransformation]
Start: TypeAlias = Family | None
NEWTON = Newton()
_CAVITY = Cavity()


class Common(TypedDict, total=False):
    """Settings that every method has."""

    temperature: float
    """The factor of every KL divergence: 1 is Bayes, and less is colder."""
    restart: bool
    """Whether clients start every visit at `start`."""
    trust_region: float
    """How far q may move in one visit when the context is improper, in nats of KL per natural parameter."""
    learn: Sequence[str]
    """The hyperparameters to learn, by name."""
    how: How
    """The way of learning them; see `partita.hyper.learning`."""
    learning: Learning
    """A way of learning of your own, instead of `learn` and `how`."""


def composed(
    solver: Solver,
    schedule: Schedule,
    aggregation: server.Aggregation,
    context: Context = _CAVITY,
    learn: Sequence[str] = (),
    how: How = "coordinate",
    learning: Learning | None = None,
    **common: Any,
) -> Method:
    """A composition, with the settings that every method has."""
    check_texts("hyperparameters to learn", learn)
    check_choice("learning rule", how, ("coordinate", "collapsed", "stochastic"))
    if len(learn) and learning is not None:
        raise SettingsError(f"Hyperparameters to learn are a list of names, without other learning, not {learn!r}.")
    if len(learn):
        learning = learning_by_name(how, tuple(learn))
    return Method(solver, schedule, aggregation, context, learning=learning, **common)


def product(damping: float | None, backtracking: bool) -> server.Aggregation:
    """The product rule, damped or with backtracking."""
    check_flag("setting backtracking", backtracking)
    return server.Backtracking(damping, monitor_free_energy=True) if backtracking else server.Damped(damping)
