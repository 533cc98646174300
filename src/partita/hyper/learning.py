"""How are hyperparameters learned? An axis of methods: when ε moves, and by what step (`sec:hyper_learning`)."""

import abc
from collections.abc import Callable
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from partita.errors import SettingsError, unknown
from partita.families.base import inner
from partita.hyper.values import Hyper
from partita.numerics.compiled import Compiled

HALVINGS = 20
"""How often a step is halved before it is given up."""
QUASI_NEWTON = optax.chain(optax.scale_by_lbfgs(), optax.scale(-1.0))
"""L-BFGS without a line search of its own."""
How = Literal["coordinate", "collapsed", "stochastic"]


class Stride(NamedTuple):
    """What resilient steps remember of a hyperparameter."""

    length: Array
    """How far it goes in a pass."""
    way: Array
    """The sign of its last change."""
    since: Array
    """How many passes ago its length was halved."""


def resilient(longest: float = 0.3, growth: float = 1.1) -> optax.GradientTransformationExtraArgs:
    """Strides by the gradient's sign (Rprop; Riedmiller and Braun 1993), the longest to begin with.

    A pass over all clients goes as far as one stride, which grows by a factor meanwhile, and is halved where it turns
    back, once a pass at most. So it comes to rest though most gradients are old, and their size, which for a
    noise is a thousand times larger from below than from above, does not matter.
    """

    def init(u: optax.Params) -> optax.OptState:
        return jax.tree.map(lambda leaf: Stride(jnp.full_like(leaf, longest), *[jnp.zeros_like(leaf)] * 2), u)

    def stride(gradient: Array, past: Stride, share: float) -> Stride:
        way, since = -jnp.sign(gradient), past.since + share
        turned = way * past.way < 0
        halved = turned & (since >= 1)
        length = jnp.where(turned, past.length, jnp.minimum(past.length * growth**share, longest))
        return Stride(jnp.where(halved, length / 2, length), way, jnp.where(halved, 0, since))

    def update(
        gradient: optax.Updates, past: optax.OptState, _: optax.Params | None = None, *, share: float
    ) -> tuple[optax.Updates, optax.OptState]:
        new = jax.tree.map(lambda g, s: stride(g, s, share), gradient, past)
        return jax.tree.map(lambda _, s: s.length * s.way, gradient, new), new

    return optax.GradientTransformationExtraArgs(init, update)


RESILIENT = resilient()


class Standing(NamedTuple):
    """What learning sees of a run: unconstrained hyperparameters u, and the free energy's gradient in them."""

    u: Hyper
    gradient: Hyper
    bound: Callable[[Hyper], float]
    """The free energy at other hyperparameters, where q moves with the prior: one communication a client.

    NaN where somebody did not answer.
    """
    residual: float
    """How many nats answers lie from the posterior, the farthest; infinite until all have answered to ε as it is."""
    tolerance: float
    """How many nats a fixed point may be missed by."""
    share: float
    """What part of those who take part have answered just now."""


class Moved(NamedTuple):
    """Hyperparameters after a step, and what the optimiser remembers."""

    u: Hyper
    memory: PyTree
    left: float = 0.0
    """How far a client's answer is from a fixed point at least; infinite for until it answers anew."""
    trials: int = 0
    """How often the free energy was asked for."""


class Learning(eqx.Module):
    """Which hyperparameters are learned, and how. Clients report gradients in ε beside their answers."""

    names: eqx.AbstractVar[tuple[str, ...]]
    optimiser: eqx.AbstractVar[optax.GradientTransformation]

    def __check_init__(self) -> None:
        if not self.names or len(set(self.names)) < len(self.names):
            raise SettingsError(f"Name the hyperparameters to be learned, each once, not {list(self.names)}.")

    def init(self, u: Hyper) -> PyTree:
        """What the optimiser remembers before its first step."""
        return self.optimiser.init(u)

    @property
    def needs_current(self) -> bool:
        """Whether an answer's residual counts only where it was formed with the current hyperparameters."""
        return True

    @property
    @abc.abstractmethod
    def why_unmoved(self) -> str:
        """Why ε may never move though everybody answers, with the remedy."""

    @abc.abstractmethod
    def update(self, standing: Standing, memory: PyTree) -> Moved:
        """The next hyperparameters; the same where it is not time yet, or nothing is to be gained."""

    def direction(self, standing: Standing, memory: PyTree) -> tuple[Hyper, PyTree]:
        """Where the optimiser would go from u, and what it then remembers."""
        return optimiser_update(self, standing.gradient, memory, standing.u, standing.share)


class Ascent(Learning):
    """Steps that do not lower the free energy: halved until F(ε', q') is not below F(ε, q), with q moved by the prior.

    On the collapsed bound F(ε, q*(ε)) steps wait until everybody's answers have settled within the tolerance: there the
    gradient at a fixed q is the bound's own (`sec:hyper-gradients`), and the optimiser sees the bound's curvature.
    Coordinate ascent waits only until answers lie nearer to the posterior than ε has to gain. Before that the gradient,
    which is that of a fixed q, may point down the way that q takes with the prior, and every try would fail; and where
    answers are noisy it ends once noise is all that is left. Nor is a step halved that promises less than answers are
    away. Factors are kept: PVI goes on from them.
    """

    names: tuple[str, ...] = eqx.field(static=True, converter=tuple)
    collapsed: bool = eqx.field(static=True, default=True)
    optimiser: optax.GradientTransformation = eqx.field(static=True, default=QUASI_NEWTON)

    @property
    def why_unmoved(self) -> str:
        if self.collapsed:
            return 'answers did not settle within the tolerance; learn with how="coordinate", or raise the tolerance'
        return 'answers did not come nearer to the posterior than there is to gain; learn with how="stochastic"'

    def update(self, standing: Standing, memory: PyTree) -> Moved:
        to_gain = gain(standing.gradient)
        near = standing.tolerance if self.collapsed else to_gain
        if standing.residual > near or to_gain <= standing.tolerance:
            return Moved(standing.u, memory)
        change, memory = self.direction(standing, memory)
        if not inner(change, standing.gradient) > 0:
            change, memory = self.direction(standing, self.init(standing.u))
        before = standing.bound(standing.u)
        floor = before - 8 * float(jnp.finfo(jax.tree.leaves(standing.u)[0].dtype).eps) * (1 + abs(before))
        reached, trials, promised = before, 1, float(inner(change, standing.gradient))
        while not np.isnan(reached) and trials <= HALVINGS and (trials == 1 or promised > standing.residual):
            trial = jax.tree.map(lambda u, c, t=2.0 ** (1 - trials): u + t * c, standing.u, change)
            promised /= 2
            reached, trials = standing.bound(trial), trials + 1
            if reached >= floor:
                return Moved(trial, memory, np.inf, trials)
        return Moved(standing.u, memory, np.inf, trials)


class Stochastic(Learning):
    """A step with every step of the server, along everybody's last gradients, of which few are new at a time.

    A pass over all clients goes as far as one step of the optimiser. It asks for nothing and waits for nobody, and
    the noise of old gradients vanishes as ε settles.
    """

    names: tuple[str, ...] = eqx.field(static=True, converter=tuple)
    optimiser: optax.GradientTransformation = eqx.field(static=True, default=RESILIENT)

    @property
    def needs_current(self) -> bool:
        return False

    @property
    def why_unmoved(self) -> str:
        return "the optimiser's steps led to no proper posterior; take smaller ones"

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


def _optimiser_update(
    learning: Learning, gradient: Hyper, memory: PyTree, u: Hyper, share: float
) -> tuple[Hyper, PyTree]:
    optimiser = optax.with_extra_args_support(learning.optimiser)
    return optimiser.update(jax.tree.map(jnp.negative, gradient), memory, u, share=share)


optimiser_update = Compiled(_optimiser_update)
