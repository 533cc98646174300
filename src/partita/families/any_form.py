"""Posteriors of any form: factors are ratios of the posteriors that a run has visited."""

import functools
from typing import ClassVar, Never, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key, PyTree

from partita.errors import SettingsError
from partita.families.base import Family
from partita.families.form import Form
from partita.families.same import same
from partita.inputs import check_kind, check_whole
from partita.numerics.compiled import Scalar

__all__ = ["AnyForm"]

_MOST_VISITS, _MOST_DRAWS = 10_000, 1_000_000
"""Beyond these a message, or an expectation, takes more memory than there is."""


class AnyForm(Family):
    """Π_i d_i(θ)^{e_i}, a product of powers of densities d_0, d_1, … that need not be of an exponential family.

    In undamped sequential PVI a client's visit turns q_{i−1} into q_i, and its factor into t_k · q_i / q_{i−1}. So with
    d_i = q_i, the prior first, a factor has the exponent 1 for every posterior that its client has left, −1 for every
    one that it found, and 0 otherwise; exponents of all factors and the prior add up to those of q, a single 1. Z_q
    stays 1, and nothing has to be normalised (`sec:pvi:pvi_flavours`). That is one exponential family, whose statistics
    are log d_i(θ) and whose natural parameters are e_i: products and quotients add exponents, as for all others.

    **What grows.** Every visit adds a density. There is room for `visits` of them; a message has all, and a client that
    has been visited n times evaluates 2n + 1 densities in its cavity.

    **What it lacks.** Its powers are no densities, and two changes of one q cannot be multiplied: the densities that
    they lead to would need one place. So changes are taken in whole and one at a time. There are no natural gradients
    in the coordinates in which densities move. Expectations are sums over points, the same ones at every visit.
    """

    exponential: ClassVar[bool] = False

    exponents: Float[Array, " v"]
    forms: Form
    """The densities, along a leading axis; what is behind the first `count` means nothing."""
    count: Float[Array, ""]
    """How many densities there are."""
    draws: int = eqx.field(static=True)
    """How many values of noise points are made of."""
    shift: int = eqx.field(static=True)

    @classmethod
    def of(cls, form: Form, visits: int = 20, draws: int = 256, shift: int = 0) -> Self:
        """A density, such as a prior, with room for so many visits.

        Expectations under it are over points made of `draws` values of noise, a lattice; another `shift` has other
        values, from which their error can be seen.
        """
        check_kind("form", form, Form, "use partita.families.Mixture or Flow")
        check_whole("number of visits", visits, most=_MOST_VISITS)
        check_whole("number of draws", draws, 2 * form.dimension, _MOST_DRAWS)
        check_whole("shift", shift, 0)
        leaves = jax.tree.map(np.asarray, form)  # in NumPy, which compiles nothing for a new number of visits
        forms = jax.tree.map(lambda leaf: jnp.array(np.broadcast_to(leaf, (visits + 1, *leaf.shape))), leaves)
        dtype = jax.tree.leaves(leaves)[0].dtype
        first = np.zeros(visits + 1, dtype)
        first[0] = 1
        return cls(jnp.array(first), forms, jnp.array(np.ones((), dtype)), draws, shift)

    @property
    def form(self) -> Form:
        """The density that it is, where it is proper."""
        return jax.tree.map(lambda leaf: leaf[jnp.argmax(self.exponents)], self.forms)

    @property
    def full(self) -> bool:
        return bool(self.count >= len(self.exponents))

    def points(self) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        """Points and masses, whose sums are its expectations."""
        noise = _noise(self.forms.dimension, self.draws, self.shift)
        return self.form.points(jnp.asarray(noise, self.exponents.dtype))

    def statistics(self, theta: Float[Array, " d"]) -> tuple[Float[Array, " v"]]:
        return (jax.vmap(lambda form: form.log_prob(theta))(self.forms),)

    def log_density(self, theta: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Σ_i e_i log d_i at every θ; densities without an exponent are not evaluated."""

        def added(total: Array, power: tuple[Array, Form]) -> tuple[Array, None]:
            exponent, form = power
            one = jax.lax.cond(
                exponent != 0, lambda: exponent * jax.vmap(form.log_prob)(theta), lambda: jnp.zeros_like(total)
            )
            return total + one, None

        return jax.lax.scan(added, jnp.zeros(len(theta), theta.dtype), (self.exponents, self.forms))[0]

    def log_normaliser(self) -> Float[Array, ""]:
        """0 of a density; unknown, NaN, of any other product."""
        return jnp.where(self.is_proper(), 0.0, jnp.nan).astype(self.exponents.dtype)

    def is_proper(self) -> Bool[Array, ""]:
        """Whether it is one of its densities; of other products it is not known."""
        single = (jnp.sum(jnp.abs(self.exponents)) == 1) & (jnp.max(self.exponents) == 1)
        return self.is_finite() & single

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Float[Array, "... d"]:
        return self.form.sample(key, shape)

    def sampler(self) -> Never:
        raise SettingsError(f"Draws of an {type(self).__name__} have no gradient: use the expectation Points.")

    def standard(self) -> Form:
        return self.form

    def with_standard(self, standard: Form) -> Self:
        return self.with_unconstrained(standard)

    def unconstrained(self) -> Form:
        return self.form

    def with_unconstrained(self, unconstrained: Form) -> Self:
        """The product with this density put behind those that there are; improper where there is no room."""
        place = self.count.astype(int)
        forms = jax.tree.map(lambda leaf, new: leaf.at[place].set(new), self.forms, unconstrained)
        exponents = jax.nn.one_hot(place, len(self.exponents), dtype=self.exponents.dtype)
        return type(self)(exponents, forms, self.count + 1, self.draws, self.shift)

    def mean_parameters(self) -> tuple[Float[Array, " v"]]:
        theta, masses = self.points()
        return (masses @ jax.vmap(lambda one: self.statistics(one)[0])(theta),)

    def with_mean_parameters(self, mean: PyTree) -> Never:
        self._lacks("mean parameters")

    def pull_back(self, gradient: PyTree) -> Never:
        self._lacks("natural gradients")

    def fisher(self) -> Never:
        self._lacks("Fisher matrix")

    def _lacks(self, what: str) -> Never:
        raise SettingsError(f"An {type(self).__name__} has no {what}: use the solver LBFGS, or Gradient.")

    def cross(self, other: Self) -> Float[Array, ""]:
        theta, masses = self.points()
        return masses @ other.log_density(theta)

    def entropy(self) -> Float[Array, ""]:
        return -self.cross(self)

    def log_prob(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        return self.log_density(theta[None])[0]

    def distance(self, other: Self) -> Float[Array, ""]:
        return (self.kl(other) + other.kl(self)) / 2

    def length(self, change: Self) -> Float[Array, ""]:
        theta, masses = self.points()
        logs = change.log_density(theta)
        return masses @ jnp.square(logs - masses @ logs) / 2

    def one(self) -> Self:
        return self**0

    def size(self) -> int:
        """How many numbers one density has."""
        return sum(leaf[0].size for leaf in jax.tree.leaves(self.forms))

    def __mul__(self, other: Self) -> Self:
        return self._combined(other, 1)

    def __truediv__(self, other: Self) -> Self:
        return self._combined(other, -1)

    def __pow__(self, exponent: Scalar) -> Self:
        return type(self)(self.exponents * exponent, self.forms, self.count, self.draws, self.shift)

    def _combined(self, other: Self, sign: int) -> Self:
        """With exponents added. Of two histories one is to be the beginning of the other; otherwise NaN."""
        first, second = same(self, other)
        shared = jnp.arange(len(first.exponents)) < jnp.minimum(first.count, second.count)

        def agree(mine: Array, theirs: Array) -> Bool[Array, ""]:
            apart = (mine != theirs).reshape(len(mine), -1).any(1)
            return ~jnp.any(apart & shared)

        pairs = zip(jax.tree.leaves(first.forms), jax.tree.leaves(second.forms), strict=True)
        alike = jnp.all(jnp.stack([agree(*pair) for pair in pairs]))
        longer = first.count >= second.count
        forms = jax.tree.map(lambda mine, theirs: jnp.where(longer, mine, theirs), first.forms, second.forms)
        exponents = jnp.where(alike, first.exponents + sign * second.exponents, jnp.nan)
        return type(self)(exponents, forms, jnp.maximum(first.count, second.count), self.draws, self.shift)


@functools.cache
def _noise(dimension: int, draws: int, shift: int) -> np.ndarray:
    """Standard normal noise from a lattice with golden ratios, which fills the cube evenly (Roberts 2018).

    Its mean is 0 and its covariance 1 to rounding, so that expectations of quadratic functions under a Gaussian are
    exact.
    """
    from scipy.special import ndtri

    ratio = 2.0
    for _ in range(60):
        ratio = (1 + ratio) ** (1 / (dimension + 1))
    start = np.random.default_rng(shift).random(dimension) if shift else np.full(dimension, 0.5)
    places = (start + np.arange(1, draws + 1)[:, None] * ratio ** -np.arange(1.0, dimension + 1)) % 1
    noise = ndtri(np.clip(places, 1e-12, 1 - 1e-12))
    noise -= noise.mean(0)
    return np.linalg.solve(np.linalg.cholesky(noise.T @ noise / draws), noise.T).T
