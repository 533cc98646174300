"""Exponential families: one type for priors, posteriors, factors and their changes."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, Self, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Bool, Float, Key, PyTree

from partita.errors import SettingsError
from partita.families.same import same
from partita.inputs import check_kind, real_array
from partita.numerics.arrays import jax_array
from partita.numerics.compiled import Scalar
from partita.numerics.trees import all_finite

__all__ = [
    "Family",
    "Mean",
    "Numbers",
    "Remembering",
    "Sampler",
    "Theta",
    "check_start",
    "finite",
    "floating",
    "inner",
    "positive",
]

Theta: TypeAlias = Any
"""One value of the parameters, or a batch of values."""

Numbers: TypeAlias = ArrayLike | Sequence[Any]
"""A number, an array, or lists of numbers, of lists of them, and so on."""

Mean: TypeAlias = Any
"""Mean parameters: a pytree whose leaves are in the order of the natural parameters' leaves."""

_DENSE = 2_000
"""For how many natural parameters at most a dense Fisher matrix is formed for some of them."""


class Sampler(Protocol):
    """The interface of samplers."""

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Theta:
        """Draws of θ with leading axes `shape`."""


class Family(eqx.Module):
    """A member exp(⟨η, T(θ)⟩ − A(η)) of an exponential family, by its natural parameters η.

    The array leaves are η and nothing else, so products, quotients and powers of densities are `+`, `-` and `·` on the
    leaves. (Short-lived members for derivatives may have more: `at_standard`.) The base measure is one: a family is to
    be written so that all of its density is in ⟨η, T(θ)⟩, and a likelihood factor of no effect has η = 0. A factor may
    be improper (A(η) infinite) and still be multiplied, divided and printed; only what needs A(η) then gives NaN.

    A family supplies the abstract methods. Everything else is derived from them, and may be overridden where a closed
    form is faster or more exact. Methods are written for one member; use `jax.vmap` for a batch.
    """

    exponential: ClassVar[bool] = True
    """Whether posteriors move within one exponential family, so that there are natural gradients, and changes can be
    damped and multiplied with each other."""

    @abc.abstractmethod
    def statistics(self, theta: Theta) -> Mean:
        """The sufficient statistics T(θ)."""

    @abc.abstractmethod
    def log_normaliser(self) -> Float[Array, ""]:
        """A(η) = log ∫ exp⟨η, T(θ)⟩ dθ; NaN or infinite where improper."""

    @abc.abstractmethod
    def is_proper(self) -> Bool[Array, ""]:
        """Whether A(η) is finite, so that the member is a probability density."""

    @abc.abstractmethod
    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Theta:
        """Draws of θ with leading axes `shape`, differentiable in η."""

    def sampler(self) -> Sampler:
        """A sampler for this member, with common quantities precomputed; a pytree."""
        return self

    @abc.abstractmethod
    def standard(self) -> PyTree:
        """The conventional parameters, such as mean and variance."""

    @abc.abstractmethod
    def with_standard(self, standard: PyTree) -> Self:
        """The member with these standard parameters."""

    @abc.abstractmethod
    def unconstrained(self) -> PyTree:
        """Coordinates in which every real vector is a proper member, such as mean and log sd."""

    @abc.abstractmethod
    def with_unconstrained(self, unconstrained: PyTree) -> Self:
        """The member with these unconstrained coordinates."""

    def at_standard(self, standard: PyTree) -> Self:
        """`with_standard` for derivatives in the standard parameters.

        A derivative that reaches, say, the mean of a tight gamma by way of η is a small difference of large numbers,
        which single precision does not hold. Such a family declares a field for the mean, fills it here, and leaves it
        out in `plain`: None, without a leaf, in all other members. Use the result for derivatives and do not keep it;
        whatever takes leaves for natural parameters, such as a product, takes those of the plain member.
        """
        return self.with_standard(standard)

    def at_unconstrained(self, unconstrained: PyTree) -> Self:
        """`with_unconstrained` for derivatives in the unconstrained coordinates: see `at_standard`."""
        return self.with_unconstrained(unconstrained)

    def plain(self) -> Self:
        """The member by its natural parameters alone: itself, unless it came from `at_standard`."""
        return self

    def mean_parameters(self) -> Mean:
        """μ = E[T(θ)] = ∇A(η)."""
        return tuple(jax.tree.leaves(jax.grad(lambda q: q.log_normaliser())(self.plain())))

    def with_mean_parameters(self, mean: Mean) -> Self:
        """The member with mean parameters μ: the maximiser of ⟨η, μ⟩ − A(η), by Newton's method from this member."""
        target = _ravel(mean)
        start, unravel = ravel_pytree(self.plain())
        precision, far = jnp.finfo(start.dtype).eps, jnp.array(jnp.inf, start.dtype)

        def excess(eta: Float[Array, " p"]) -> Float[Array, ""]:
            return unravel(eta).log_normaliser() - eta @ target

        def newton(carry: tuple[Array, Array, Any]) -> tuple[Array, Array, Any]:
            eta, _, steps = carry
            gradient = jax.grad(excess)(eta)
            direction = jnp.linalg.solve(jax.hessian(excess)(eta), gradient)

            def falls(scale: Float[Array, ""]) -> Bool[Array, ""]:
                trial = eta - scale * direction
                return unravel(trial).is_proper() & (excess(trial) <= excess(eta))

            scale = jax.lax.while_loop(lambda s: ~falls(s) & (s > 1e-12), lambda s: s / 2, jnp.ones((), eta.dtype))
            return eta - scale * direction, gradient @ direction, steps + 1

        eta, _, _ = jax.lax.while_loop(lambda c: (c[1] > precision**2) & (c[2] < 100), newton, (start, far, 0))
        return unravel(eta)

    def pull_back(self, gradient: PyTree) -> Self:
        """The natural gradient ∇_μ f of a function, given its gradient in the standard parameters.

        Solves (∂μ/∂s)ᵀ x = ∇_s f with the dense Jacobian (`prop:fixed-point-equations`, where the Fisher matrix is
        ∂μ/∂η). Families with a closed form for the map override it.
        """
        flat, unravel_standard = ravel_pytree(self.standard())
        _, unravel = ravel_pytree(self.plain())
        jacobian = jax.jacfwd(lambda s: _ravel(self.at_standard(unravel_standard(s)).mean_parameters()))(flat)
        return unravel(jnp.linalg.solve(jacobian.T, _ravel(gradient)))

    def natural_gradient(self, function: Callable[[Self], Float[Array, ""]]) -> Self:
        """∇_μ f at this member, itself a member: the factor exp⟨∇_μ f, T(θ)⟩ of `eq:fixed-point-bi-simplified`."""
        return self.value_and_natural_gradient(function)[1]

    def value_and_natural_gradient(self, function: Callable[[Self], Float[Array, ""]]) -> tuple[Float[Array, ""], Self]:
        """f and ∇_μ f at this member."""
        value, gradient = jax.value_and_grad(lambda s: function(self.at_standard(s)))(self.standard())
        return value, self.pull_back(gradient)

    def fisher(self) -> Float[Array, "p p"]:
        """The Fisher information ∂μ/∂η = cov[T(θ)], as a dense matrix over the raveled natural parameters."""
        eta, unravel = ravel_pytree(self.plain())
        return jax.jacfwd(lambda e: _ravel(unravel(e).mean_parameters()))(eta)

    def is_split(self, free: Self) -> bool:
        """Whether leaves are free while others stay that are not independent of them; `free` has bools for leaves.

        Where they are independent, as components of a product are, a natural gradient in the free leaves is that in all
        leaves, cut. Otherwise it is not: see `restricted`.
        """
        leaves = jax.tree.leaves(free)
        return any(leaves) and not all(leaves)

    def restricted(self, direction: Self, free: Self) -> Self:
        """The natural gradient in the free leaves, the others fixed, given the one in all leaves; `free` has bools.

        With ∇_η f = F g for a natural gradient g and the Fisher matrix F, it is F_BB⁻¹ (F g)_B for the free leaves B:
        the direction within B that is nearest to g. It vanishes just where the gradient of f in the free leaves does.
        By default F is dense, with a pseudo-inverse, since leaves that are symmetric matrices make it singular;
        families with a closed form override it.
        """
        chosen = jax.tree.map(lambda leaf, kept: leaf if kept else jnp.zeros_like(leaf), direction, free)
        if not self.is_split(free):
            return chosen
        if self.size() > _DENSE:
            raise SettingsError(
                f"Some leaves of a {type(self).__name__} of {self.size()} parameters are too many to be moved alone by "
                f"natural gradients, {_DENSE} at most: free all of its leaves, or use Gradient or LBFGS."
            )
        flat, unravel = ravel_pytree(direction)
        pairs = zip(jax.tree.leaves(self), jax.tree.leaves(free), strict=True)
        inside = np.concatenate([np.full(leaf.size, kept) for leaf, kept in pairs])
        fisher = self.fisher()
        scale = 1 / jnp.sqrt(jnp.diagonal(fisher)[inside])
        scaled = fisher[np.ix_(inside, inside)] * jnp.outer(scale, scale)
        within = jnp.linalg.pinv(scaled, hermitian=True) @ (scale * (fisher @ flat)[inside])
        return unravel(jnp.zeros_like(flat).at[inside].set(scale * within))

    def entropy(self) -> Float[Array, ""]:
        """−E[log q(θ)]."""
        return self.log_normaliser() - inner(self.plain(), self.mean_parameters())

    def cross(self, other: Self) -> Float[Array, ""]:
        """E_q⟨η_other, T(θ)⟩: the expected logarithm of an un-normalised, perhaps improper, member."""
        return inner(other.plain(), self.mean_parameters())

    def kl(self, other: Self) -> Float[Array, ""]:
        """KL(self ‖ other), both proper."""
        return other.log_normaliser() - self.cross(other) - self.entropy()

    def distance(self, other: Self) -> Float[Array, ""]:
        """The symmetric KL divergence (KL(p‖q) + KL(q‖p)) / 2, which has no cancellation for close members."""
        apart = jax.tree.map(jnp.subtract, self.mean_parameters(), other.mean_parameters())
        return inner(self / other, apart) / 2

    def length(self, change: Self) -> Float[Array, ""]:
        """½ δᵀFδ, KL of a small change δ of natural parameters: half the variance of log δ(θ)."""
        _, moved = jax.jvp(lambda q: q.mean_parameters(), (self,), (change,))
        return inner(change, moved) / 2

    def log_prob(self, theta: Theta) -> Float[Array, ""]:
        """The log density log q(θ) at one θ."""
        return inner(self.plain(), self.statistics(theta)) - self.log_normaliser()

    def moments(self) -> tuple[Theta, Theta]:
        """Mean and standard deviation of θ; by default from 10,000 draws with a fixed key."""
        draws = self.sample(jax.random.key(0), (10_000,))
        return jax.tree.map(lambda d: d.mean(0), draws), jax.tree.map(lambda d: d.std(0), draws)

    def interval(self, mass: float = 0.95) -> tuple[Theta, Theta]:
        """Ends of the central interval of each parameter; by default from 10,000 draws with a fixed key."""
        draws = self.sample(jax.random.key(0), (10_000,))

        def end(share: float) -> Theta:
            return jax.tree.map(lambda d: jnp.quantile(d, share, axis=0), draws)

        return end((1 - mass) / 2), end((1 + mass) / 2)

    @property
    def returned(self) -> "Family":
        """What a run returns of this posterior: itself, or the nearest member of a smaller family."""
        return self

    def nearest(self) -> Self:
        """`returned`, as a member of this family."""
        return self

    def within(self, factor: Self) -> "Family":
        """A factor of this posterior as one of `returned`, with the same gradient there; they multiply to it."""
        return factor

    @property
    def gap(self) -> Float[Array, ""] | None:
        """KL(`returned` ‖ this posterior) in nats; None of a family that returns its members as they are."""
        return None

    @property
    def full(self) -> bool:
        """Whether there is no room for another visit."""
        return False

    def part(self, name: str) -> "Family | None":
        """Its independent component with this name, if there is one."""
        return None

    def precision_range(self, other: Self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The smallest and largest ratio, over all directions, of its precision to that of another, proper member."""
        raise SettingsError(f"A {type(self).__name__} has no directional precision: use only the KL bounds.")

    def has_scale(self) -> bool:
        """Whether `stretched` is supported for at least some of its coordinates."""
        return type(self).stretched is not Family.stretched

    def stretched(self, scale: Theta) -> Self:
        """The member scaled about its mean, with a scale per coordinate."""
        raise SettingsError(f"A {type(self).__name__} has no learnable scale: use a Gaussian prior.")

    def fitting(self, other: Self, name: str) -> Self:
        """The member cast to the dtype of another; it must be proper and have the same family and shape."""
        same(other, self)
        if not self.is_proper():
            raise SettingsError(f"The {name} is improper: give it finite natural parameters and positive precision.")
        return jax.tree.map(lambda a, b: a.astype(b.dtype), self, other)

    def one(self) -> Self:
        """The identity factor, η = 0."""
        return jax.tree.map(jnp.zeros_like, self.plain())

    def symmetrised(self) -> Self:
        """The member without the antisymmetric part of its matrices, which no density has; itself if it has none.

        A family with a matrix among its leaves overrides it. What came from elsewhere needs it: ⟨η, T(θ)⟩ and Cholesky
        factors do not see the part, and products with the matrix do.
        """
        return self

    def is_finite(self) -> Bool[Array, ""]:
        """Whether every natural parameter is a finite number."""
        return all_finite(self)

    def size(self) -> int:
        """The number of natural parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.plain()))

    def __mul__(self, other: Self) -> Self:
        return jax.tree.map(jnp.add, *same(self, other))

    def __truediv__(self, other: Self) -> Self:
        return jax.tree.map(jnp.subtract, *same(self, other))

    def __pow__(self, exponent: Scalar) -> Self:
        return jax.tree.map(lambda leaf: leaf * exponent, self.plain())

    def __str__(self) -> str:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(self)):
            return repr(self)
        kind = "non-finite" if not self.is_finite() else "proper" if self.is_proper() else "improper"
        lines = [
            f"  {jax.tree_util.keystr(path).lstrip('.')} {tuple(leaf.shape)}: from {leaf.min():.4g} to {leaf.max():.4g}"
            for path, leaf in jax.tree_util.tree_leaves_with_path(self)
            if leaf.size
        ]
        return "\n".join([f"{type(self).__name__}, {kind}, {self.size()} natural parameters", *lines])


class Remembering(Family):
    """A family whose members `at_standard` hold what they were made of, in fields that `plain` leaves out."""

    def with_standard(self, standard: PyTree) -> Self:
        return self.at_standard(standard).plain()

    def with_unconstrained(self, unconstrained: PyTree) -> Self:
        return self.at_unconstrained(unconstrained).plain()


def inner(natural: PyTree, mean: Mean) -> Float[Array, ""]:
    """⟨η, μ⟩, leaf by leaf in order."""
    pairs = zip(jax.tree.leaves(natural), jax.tree.leaves(mean), strict=True)
    return jnp.sum(jnp.stack([jnp.vdot(a, b) for a, b in pairs]))


def check_start(start: Any) -> None:
    """Raises a `SettingsError` unless an initial q is a member of a family, or None."""
    if start is not None:
        check_kind("start", start, Family, "give one of the prior's family", name="a member of a family")


def floating(leaf: Numbers, name: str = "parameters") -> Float[Array, "..."]:
    """The leaf as a floating-point array with a strong dtype; a weak one would cause recompilation."""
    if not isinstance(leaf, jax.Array):
        array = real_array(name, leaf)
        return jax_array(array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float))
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        raise SettingsError(f"The {name} hold complex numbers where real numbers are needed: take their real parts.")
    return jnp.asarray(leaf, leaf.dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else float)


def positive(values: Numbers, name: str) -> Float[Array, "..."]:
    """The values as an array; raises an `InputError` with the first value that is not positive and finite."""
    array = floating(values, name)
    if isinstance(array, jax.core.Tracer):
        return array
    given = np.asarray(array)  # in NumPy, which compiles nothing
    allowed = np.isfinite(given) & (given > 0)
    if not allowed.all():
        raise SettingsError(f"The {name} must be finite and above 0, not {given[~allowed][0]:g}.")
    return array


def finite(values: Numbers, name: str) -> Float[Array, "..."]:
    """The values as an array; raises a `SettingsError` where one is not finite."""
    array = floating(values, name)
    if not isinstance(array, jax.core.Tracer) and not np.isfinite(np.asarray(array)).all():
        raise SettingsError(f"The {name} must be finite: give numbers.")
    return array


def _ravel(tree: PyTree) -> Float[Array, " p"]:
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])
