"""How are hyperparameters learned? An axis of methods: when ε moves, and by what step (`sec:hyper_learning`)."""

import abc
from collections.abc import Callable
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, PyTree

from partita.compiled import Compiled
from partita.errors import InputError, unknown
from partita.families.base import inner
from partita.hyper import Hyper

HALVINGS = 20
"""How often a step is halved before it is given up."""
QUASI_NEWTON = optax.chain(optax.scale_by_lbfgs(), optax.scale(-1.0))
"""L-BFGS without a line search of its own."""
AMSGRAD = optax.amsgrad(0.3, b1=0.5)
"""Adam whose steps shrink with the gradient, and that forgets old ones soon: it comes to rest though most are old."""
How = Literal["coordinate", "collapsed", "stochastic"]


class Standing(NamedTuple):
    """What learning sees of a run: unconstrained hyperparameters u, and the free energy's gradient in them."""

    u: Hyper
    gradient: Hyper
    bound: Callable[[Hyper], float]
    """The free energy at other hyperparameters, where q moves with the prior: one communication a client.

    NaN where somebody did not answer.
    """
    tolerance: float
    """How many nats a fixed point may be missed by."""
    share: float
    """What part of those who take part have answered just now."""


class Moved(NamedTuple):
    """Hyperparameters after a step, and what the optimiser remembers."""

    u: Hyper
    memory: PyTree
    left: float = 0.0
    """How many nats a client's answer is away from a fixed point at least; infinite for until it answers anew."""
    trials: int = 0
    """How often the free energy was asked for."""


class Learning(eqx.Module):
    """Which hyperparameters are learned, and how. Clients report gradients in ε beside their answers."""

    names: eqx.AbstractVar[tuple[str, ...]]
    optimiser: eqx.AbstractVar[optax.GradientTransformation]

    def __check_init__(self) -> None:
        if not self.names or len(set(self.names)) < len(self.names):
            raise InputError(f"Name the hyperparameters to be learned, each once, not {list(self.names)}.")

    def init(self, u: Hyper) -> PyTree:
        """What the optimiser remembers before its first step."""
        return self.optimiser.init(u)

    @property
    def waits(self) -> bool:
        """Whether an answer counts only where it was formed with the hyperparameters as they are now."""
        return True

    @abc.abstractmethod
    def due(self, residual: Float[np.ndarray, " m"], tolerance: float) -> bool:
        """Whether ε is to move now, given the residuals of clients that take part; infinite since ε last moved."""

    @abc.abstractmethod
    def update(self, standing: Standing, memory: PyTree) -> Moved:
        """The next hyperparameters; the same where the gradient says that nothing is to be gained."""

    def direction(self, standing: Standing, memory: PyTree) -> tuple[Hyper, PyTree]:
        """Where the optimiser would go from u, and what it then remembers."""
        return optimiser_update(self, standing.gradient, memory, standing.u)


class Ascent(Learning):
    """Steps that do not lower the free energy: halved until F(ε', q') is not below F(ε, q), with q moved by the prior.

    Coordinate ascent steps whenever everybody's answer to ε as it is has been taken in. On the collapsed bound
    F(ε, q*(ε)) steps wait until everybody's answers have settled: there the gradient at a fixed q is the bound's own
    (`sec:hyper-gradients`), and the optimiser sees the bound's curvature. Factors are kept: PVI goes on from them.
    """

    names: tuple[str, ...] = eqx.field(static=True, converter=tuple)
    collapsed: bool = eqx.field(static=True, default=True)
    optimiser: optax.GradientTransformation = eqx.field(static=True, default=QUASI_NEWTON)

    def due(self, residual: Float[np.ndarray, " m"], tolerance: float) -> bool:
        return bool(np.all(residual <= (tolerance if self.collapsed else np.finfo(float).max)))

    def update(self, standing: Standing, memory: PyTree) -> Moved:
        if gain(standing.gradient) <= standing.tolerance:
            return Moved(standing.u, memory)
        change, memory = self.direction(standing, memory)
        if not inner(change, standing.gradient) > 0:
            change, memory = self.direction(standing, self.init(standing.u))
        before = standing.bound(standing.u)
        floor = before - 8 * float(jnp.finfo(jax.tree.leaves(standing.u)[0].dtype).eps) * (1 + abs(before))
        reached, trials = before, 1
        while not np.isnan(reached) and trials <= HALVINGS:
            trial = jax.tree.map(lambda u, c, t=2.0 ** (1 - trials): u + t * c, standing.u, change)
            reached, trials = standing.bound(trial), trials + 1
            if reached >= floor:
                return Moved(trial, memory, np.inf, trials)
        return Moved(standing.u, memory, np.inf if np.isnan(reached) else gain(standing.gradient), trials)


class Stochastic(Learning):
    """A step with every step of the server, along everybody's last gradients, of which few are new at a time.

    A pass over all clients goes as far as one step of the optimiser. It asks for nothing and waits for nobody, and
    the noise of old gradients vanishes as ε settles. Begin within a factor of ten or so: the largest gradient that was
    ever seen decides how far steps go.
    """

    names: tuple[str, ...] = eqx.field(static=True, converter=tuple)
    optimiser: optax.GradientTransformation = eqx.field(static=True, default=AMSGRAD)

    @property
    def waits(self) -> bool:
        return False

    def due(self, residual: Float[np.ndarray, " m"], tolerance: float) -> bool:
        return True

    def update(self, standing: Standing, memory: PyTree) -> Moved:
        change, memory = self.direction(standing, memory)
        u = jax.tree.map(lambda u, c: u + standing.share * c, standing.u, change)
        return Moved(u, memory, gain(standing.gradient))


def gain(gradient: Hyper) -> float:
    """Nats that a step along the gradient gains where the free energy bends by 1, as for a scale of few parameters."""
    return float(optax.tree.norm(gradient, squared=True)) / 2


def named(how: How, names: tuple[str, ...]) -> Learning:
    """The way of learning with this name."""
    if how == "stochastic":
        return Stochastic(names)
    if how not in ("coordinate", "collapsed"):
        raise unknown("way of learning", how, ("coordinate", "collapsed", "stochastic"))
    return Ascent(names, collapsed=how == "collapsed")


def _optimiser_update(learning: Learning, gradient: Hyper, memory: PyTree, u: Hyper) -> tuple[Hyper, PyTree]:
    return learning.optimiser.update(jax.tree.map(jnp.negative, gradient), memory, u)


optimiser_update = Compiled(_optimiser_update)
