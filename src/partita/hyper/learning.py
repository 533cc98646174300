"""Hyperparameter learning: when ε is updated and by what step (`sec:hyper_learning`)."""

import abc
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from partita.errors import SettingsError
from partita.families.base import inner
from partita.hyper.values import Hyper
from partita.inputs import check_choice, check_flag, check_texts
from partita.numerics.compiled import Compiled, Scalar

__all__ = [
    "HALVINGS",
    "Ascent",
    "How",
    "Kept",
    "Learning",
    "LearningStep",
    "LearningView",
    "RpropState",
    "Stochastic",
    "gain",
    "learning_by_name",
    "rprop",
]

HALVINGS = 20
"""The maximum number of halvings in backtracking."""
_QUASI_NEWTON = optax.chain(optax.scale_by_lbfgs(), optax.scale(-1.0))
"""L-BFGS without a line search of its own."""
How = Literal["coordinate", "collapsed", "stochastic"]


class RpropState(NamedTuple):
    """The state of Rprop for one hyperparameter."""

    length: Array
    """The step size per pass."""
    way: Array
    """The sign of its last change."""
    since: Array
    """The number of passes since the step size was halved."""


def rprop(longest: float = 0.3, growth: float = 1.1) -> optax.GradientTransformationExtraArgs:
    """Rprop: steps by the sign of the gradient (Riedmiller and Braun 1993), starting with the largest step size.

    The updates of one pass over all clients add up to one step. The step size grows by `growth` per pass, and is halved
    when the sign changes, at most once per pass. It therefore converges although most gradients are stale, and does not
    depend on the gradient's magnitude, which for a noise parameter is far larger below the optimum than above.
    """

    def init(u: optax.Params) -> optax.OptState:
        return jax.tree.map(lambda leaf: RpropState(jnp.full_like(leaf, longest), *[jnp.zeros_like(leaf)] * 2), u)

    def stride(gradient: Array, past: RpropState, share: Scalar) -> RpropState:
        way, since = -jnp.sign(gradient), past.since + share
        turned = way * past.way < 0
        halved = turned & (since >= 1)
        length = jnp.where(turned, past.length, jnp.minimum(past.length * growth**share, longest))
        return RpropState(jnp.where(halved, length / 2, length), way, jnp.where(halved, 0, since))

    def update(
        gradient: optax.Updates, past: optax.OptState, _: optax.Params | None = None, *, share: Scalar
    ) -> tuple[optax.Updates, optax.OptState]:
        new = jax.tree.map(lambda g, s: stride(g, s, share), gradient, past)
        return jax.tree.map(lambda _, s: s.length * s.way, gradient, new), new

    return optax.GradientTransformationExtraArgs(init, update)


_RPROP = rprop()


class LearningView(NamedTuple):
    """The input of a learning step: unconstrained hyperparameters u, and the free energy's gradient in them."""

    u: Hyper
    gradient: Hyper
    bound: Callable[[Hyper], float]
    """The free energy at other hyperparameters, with q moved along with the prior; costs one communication per client.

    NaN if a client did not answer.
    """
    residual: float
    """The largest residual in nats; infinite until every client has answered for the current ε."""
    tolerance: float
    """The run's convergence tolerance in nats; 0 for one that goes on until its budget is spent."""
    share: float
    """The fraction of active clients whose answers were just aggregated."""


class LearningStep(NamedTuple):
    """The hyperparameters after a step, and the optimiser's state."""

    u: Hyper
    memory: PyTree
    left: float = 0.0
    """A lower bound on every client's residual; infinite until the client answers again."""
    trials: int = 0
    """The number of free-energy evaluations."""


def _names(names: Any) -> tuple[str, ...]:
    check_texts("hyperparameters to learn", names)
    return tuple(names)


class Learning(eqx.Module):
    """Which hyperparameters are learned, and how. Clients report gradients in ε with their answers."""

    names: tuple[str, ...] = eqx.field(static=True, converter=_names)
    optimiser: eqx.AbstractVar[optax.GradientTransformation]

    def __check_init__(self) -> None:
        if not self.names or len(set(self.names)) < len(self.names):
            raise SettingsError(f"List the hyperparameters to learn, each once, not {list(self.names)}.")
        if not (hasattr(self.optimiser, "init") and hasattr(self.optimiser, "update")):
            raise SettingsError("The optimiser must be a transformation: give one such as optax.adam(0.1).")

    def init(self, u: Hyper) -> PyTree:
        """The optimiser's initial state."""
        return self.optimiser.init(u)

    @property
    def needs_current(self) -> bool:
        """Whether an answer's residual counts only where it was formed with the current hyperparameters."""
        return True

    @property
    @abc.abstractmethod
    def why_unmoved(self) -> str:
        """Why ε may never be updated although all clients answer, with the remedy."""

    @abc.abstractmethod
    def update(self, view: LearningView, memory: PyTree) -> LearningStep:
        """The next hyperparameters; unchanged if an update is not due or would gain nothing."""

    def direction(self, view: LearningView, memory: PyTree) -> tuple[Hyper, PyTree]:
        """The optimiser's step from u, and its new state."""
        return _optimiser_update(self, view.gradient, memory, view.u, view.share)


class Ascent(Learning):
    """Ascent with backtracking: a step is halved until F(ε', q') ≥ F(ε, q), where q' moves along with the prior.

    With `collapsed`, a step is taken only once all residuals are within the tolerance: there the gradient at fixed q
    equals that of the collapsed bound F(ε, q*(ε)) (`sec:hyper-gradients`), and the optimiser sees its curvature.
    Coordinate ascent waits only until the residual is below the expected gain. Before that, the gradient at fixed q may
    be a descent direction once q moves with the prior, and backtracking would fail; with noisy answers it stops when
    the gain is below the noise. Backtracking also stops once the expected gain of a step is below the residual. The
    factors are unchanged.
    """

    collapsed: bool = eqx.field(static=True, default=True)
    optimiser: optax.GradientTransformation = eqx.field(static=True, default=_QUASI_NEWTON)

    def __check_init__(self) -> None:
        check_flag("setting collapsed", self.collapsed)

    @property
    def why_unmoved(self) -> str:
        if self.collapsed:
            return 'the residual stayed above the tolerance; use how="coordinate", or raise the tolerance'
        return 'the residual stayed above the expected gain; use how="stochastic"'

    def update(self, view: LearningView, memory: PyTree) -> LearningStep:
        to_gain = gain(view.gradient)
        near = view.tolerance if self.collapsed else to_gain
        if view.residual > near or to_gain <= view.tolerance:
            return LearningStep(view.u, memory)
        change, memory = self.direction(view, memory)
        if not inner(change, view.gradient) > 0:
            change, memory = self.direction(view, self.init(view.u))
        before = view.bound(view.u)
        floor = before - 8 * float(jnp.finfo(jax.tree.leaves(view.u)[0].dtype).eps) * (1 + abs(before))
        reached, trials, promised = before, 1, float(inner(change, view.gradient))
        while not np.isnan(reached) and trials <= HALVINGS and (trials == 1 or promised > view.residual):
            trial = jax.tree.map(lambda u, c, t=2.0 ** (1 - trials): u + t * c, view.u, change)
            promised /= 2
            reached, trials = view.bound(trial), trials + 1
            if reached >= floor:
                return LearningStep(trial, memory, np.inf, trials)
        return LearningStep(view.u, memory, np.inf, trials)


class Stochastic(Learning):
    """One update per server step, using every client's last gradient, most of which are stale.

    The updates of one pass over all clients add up to one optimiser step. It needs no extra communication and no
    waiting, and the error from stale gradients vanishes as ε converges.
    """

    optimiser: optax.GradientTransformation = eqx.field(static=True, default=_RPROP)

    @property
    def needs_current(self) -> bool:
        return False

    @property
    def why_unmoved(self) -> str:
        return "every optimiser step would make the posterior improper; use smaller steps"

    def update(self, view: LearningView, memory: PyTree) -> LearningStep:
        change, memory = self.direction(view, memory)
        u = jax.tree.map(lambda u, c: u + view.share * c, view.u, change)
        return LearningStep(u, memory, gain(view.gradient))


class Kept(Learning):
    """Hyperparameters stay as they are, such as where the rows of most clients are not at hand."""

    optimiser: optax.GradientTransformation = eqx.field(static=True, default=optax.identity())

    @property
    def why_unmoved(self) -> str:
        return 'they are kept; use how="coordinate" with every client\'s rows'

    def update(self, view: LearningView, memory: PyTree) -> LearningStep:
        return LearningStep(view.u, memory)


def gain(gradient: Hyper) -> float:
    """The expected gain |∇|²/2 in nats of a gradient step, assuming unit curvature."""
    return float(optax.tree.norm(gradient, squared=True)) / 2


def learning_by_name(how: How, names: tuple[str, ...]) -> Learning:
    """The learning rule with this name."""
    check_choice("learning rule", how, ("coordinate", "collapsed", "stochastic"))
    if how == "stochastic":
        return Stochastic(names)
    return Ascent(names, collapsed=how == "collapsed")


@Compiled
def _optimiser_update(
    learning: Learning, gradient: Hyper, memory: PyTree, u: Hyper, share: Scalar
) -> tuple[Hyper, PyTree]:
    optimiser = optax.with_extra_args_support(learning.optimiser)
    return optimiser.update(jax.tree.map(jnp.negative, gradient), memory, u, share=share)
