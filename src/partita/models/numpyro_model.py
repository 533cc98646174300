"""A NumPyro model as a likelihood of rows and a prior: its shared sites are θ, without constraints in one vector."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import enable_x64
from jaxtyping import Array, Float, Key, Num

from partita.data.shard import real_numbers
from partita.errors import DataError, SettingsError
from partita.expectations import CommonDraws, Expectation
from partita.families import Family, FullGaussian
from partita.inputs import check_function, check_kind, check_texts, described
from partita.models.base import Model, check_finite
from partita.models.numpyro_sites import Rows, Sites, Trace, read_sites, total, traced
from partita.models.prior import OutsidePrior
from partita.numerics.compiled import Compiled

__all__ = ["NumPyroModel", "from_numpyro"]

_DRAWS = 4000
"""How many draws of the prior tell how wide it is."""
_HESSIAN = 2000
"""With more parameters than these it is not tried whether the prior is a Gaussian."""

_TOGETHER = 64
"""How many draws are looked at together."""
_SAME = 1e-6
"""How far elements of the Hessian of a Gaussian prior may be from one point to another, relative to the precisions."""

_OfMeanAndSd = Callable[[Float[np.ndarray, " d"], Float[np.ndarray, " d"]], Family]


class NumPyroModel(Model):
    """A NumPyro model: its observed sites are the likelihood of a client's rows, a dict of the model's arguments.

    θ is one vector: the shared sites one after the other, each by NumPyro's own bijection from the reals to its
    support. A row's discrete variables are summed out.
    """

    function: Callable[..., Any] = eqx.field(static=True)
    sites: Sites
    columns: tuple[tuple[str, tuple[int, ...], str], ...] = eqx.field(static=True)
    """Of every argument that rows have: its name, its shape in one row, and its type."""
    expectation: Expectation = eqx.field(kw_only=True)

    def log_density(self, theta: Float[Array, " d"], datum: Mapping[str, Array]) -> Float[Array, ""]:
        rows, free = {name: value[None] for name, value in datum.items()}, self.apart(theta)

        def joint(discrete: Mapping[str, Array]) -> Float[Array, ""]:
            trace, _ = traced(self.function, rows, free, discrete)
            return total(trace, (*self.sites.observed, *discrete))

        if not self.sites.discrete:
            return joint({})
        return jax.nn.logsumexp(jax.vmap(joint)(jax.tree.map(jnp.asarray, self.sites.discrete)))

    def check(self, data: Rows) -> None:
        names = [name for name, *_ in self.columns]
        if not isinstance(data, Mapping) or set(data) != set(names):
            raise DataError(f"the rows are not those of the NumPyro model: give a dict of {', '.join(names)}")
        for name, shape, kind in self.columns:
            found = np.asarray(data[name])
            if found.shape[1:] != shape:
                raise DataError(
                    f"{name} has the shape {found.shape[1:]} in a row where the model was read with {shape}"
                )
            if np.issubdtype(found.dtype, np.floating) and not np.issubdtype(np.dtype(kind), np.floating):
                raise DataError(f"{name} holds fractions where the model was read with whole numbers: give those")
        check_finite(data)

    def log_prior(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        """log p(θ), of θ without constraints."""
        trace, stretch = self.without_rows(self.apart(theta))
        return total(trace, (*(site.name for site in self.sites.shared), *self.sites.given)) + stretch

    def values(self, theta: Float[Array, "... d"]) -> dict[str, Num[np.ndarray, "..."]]:
        """The shared sites at draws of θ, as `numpyro.infer.Predictive` takes posterior samples."""
        found = _values(self, jnp.asarray(theta))
        return {name: np.asarray(value) for name, value in found.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each element of θ, which says so where it is not the variable itself."""
        named = list[str]()
        for site in self.sites.shared:
            label = site.name if site.real else f"unconstrained {site.name}"
            places = [",".join(map(str, place)) for place in np.ndindex(*site.shape)]
            named += [f"{label}[{place}]" if place else label for place in places]
        return tuple(named)

    def prior(self, family: _OfMeanAndSd | None = None) -> Family | OutsidePrior:
        """The prior, for `run`.

        Args:
            family: makes q's family of means and sds, such as `MeanFieldGaussian.from_mean_sd`; a `FullGaussian`
                if None.

        Returns:
            A member of the family if the prior is one, of independent Gaussians; else an `OutsidePrior` whose base has
            each element's median and the width of its central 95%.

        """
        family = family or _full
        check_function("family", family)
        with enable_x64(True):
            drawn = np.asarray(_prior_draws(self, jax.random.key(0)))
            low, median, high = np.quantile(drawn, [0.025, 0.5, 0.975], axis=0)
            width = (high - low) / 2 / 1.96
            usable = np.isfinite(median) & np.isfinite(width) & (width > 0)
            if not usable.all():
                name = self.names[int(np.argmin(usable))]
                raise SettingsError(f"The prior of {name} has no width: give it a proper one, of a variable.")
            known = _independent(self, median, width)
        if known is not None:
            return family(*known)
        return OutsidePrior(_PriorOfSites(self, expectation=self.expectation), family(median, width))

    def apart(self, theta: Float[Array, " d"]) -> dict[str, Float[Array, "..."]]:
        """The sites' values without constraints."""
        ends = np.cumsum([site.size for site in self.sites.shared])
        parts = jnp.split(theta, ends[:-1])
        return {site.name: part.reshape(site.shape) for site, part in zip(self.sites.shared, parts, strict=True)}

    def without_rows(
        self, free: Mapping[str, Array], key: Key[Array, ""] | None = None
    ) -> tuple[Trace, Float[Array, ""]]:
        """The model's trace on a row of zeros, on which shared sites do not depend; with log|dθ/du|."""
        kinds = {name: (shape, jax.dtypes.canonicalize_dtype(kind)) for name, shape, kind in self.columns}
        zeros = {name: jnp.zeros((1, *shape), kind) for name, (shape, kind) in kinds.items()}
        return traced(self.function, zeros, free, {}, key)


class _PriorOfSites(Model):
    """The prior of a NumPyro model's shared sites."""

    model: NumPyroModel
    expectation: Expectation = eqx.field(kw_only=True)

    def log_density(self, theta: Float[Array, " d"], datum: Float[Array, ""]) -> Float[Array, ""]:
        return self.model.log_prior(theta)


def _full(mean: Float[np.ndarray, " d"], sd: Float[np.ndarray, " d"]) -> Family:
    return FullGaussian.from_mean_covariance(mean, np.diag(sd**2))


@Compiled
def _values(model: NumPyroModel, theta: Float[Array, "... d"]) -> dict[str, Num[Array, "..."]]:
    def one(theta: Float[Array, " d"]) -> dict[str, Num[Array, "..."]]:
        trace, _ = model.without_rows(model.apart(theta))
        return {site.name: trace[site.name]["value"] for site in model.sites.shared}

    found = jax.lax.map(one, theta.reshape(-1, theta.shape[-1]), batch_size=_TOGETHER)
    return {name: value.reshape(*theta.shape[:-1], *value.shape[1:]) for name, value in found.items()}


@Compiled
def _prior_draws(model: NumPyroModel, key: Key[Array, ""]) -> Float[Array, "s d"]:
    """Draws of θ from the prior."""
    from numpyro.distributions import biject_to

    def one(key: Key[Array, ""]) -> Float[Array, " d"]:
        trace, _ = model.without_rows({}, key)
        sites = [trace[site.name] for site in model.sites.shared]
        free = [biject_to(site["fn"].support).inv(site["value"]) for site in sites]
        return jnp.concatenate([value.reshape(-1) for value in free])

    return jax.lax.map(one, jax.random.split(key, _DRAWS), batch_size=_TOGETHER)


def _independent(
    model: NumPyroModel, centre: Float[np.ndarray, " d"], width: Float[np.ndarray, " d"]
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]] | None:
    """Mean and sd of the prior, if it is one of independent Gaussians: its Hessian is the same diagonal everywhere."""
    if len(centre) > _HESSIAN:
        return None
    noise = np.random.default_rng(0).normal(size=(3, len(centre)))
    slopes, hessians = (np.asarray(each) for each in _derivatives(model, jnp.asarray(centre + width * noise)))
    precision = -np.diagonal(hessians[0])
    if not (np.isfinite(hessians).all() and (precision > 0).all()):
        return None
    scale = np.sqrt(np.outer(precision, precision))
    if np.abs((hessians + np.diag(precision)) / scale).max() > _SAME:
        return None
    return centre + width * noise[0] + slopes[0] / precision, precision**-0.5


@Compiled
def _derivatives(model: NumPyroModel, theta: Float[Array, "s d"]) -> tuple[Float[Array, "s d"], Float[Array, "s d d"]]:
    """Gradient and Hessian of the log density of the prior."""
    slope = jax.grad(model.log_prior)
    return jax.vmap(slope)(theta), jax.lax.map(jax.jacfwd(slope), theta)


def from_numpyro(
    model: Callable[..., Any],
    rows: Rows,
    *,
    shared: Collection[str] = (),
    local: Collection[str] = (),
    expectation: Expectation | None = None,
) -> NumPyroModel:
    """A NumPyro model as a likelihood for `run`, with its prior.

    Sites in no plate are shared by all clients; a row's own discrete sites are summed out.

    Args:
        model: a function with `numpyro.sample` sites. Its arguments are rows; bind others with `functools.partial`.
        rows: by the names of the arguments, as each client has them; also made-up ones. Only their shapes are kept.
        shared: the names of plates, such as of groups, whose variables all clients share.
        local: the names of plates whose variables belong to one client.
        expectation: how E_q of a row's log density is computed; `CommonDraws()` if None.

    Returns:
        The likelihood; `prior()` makes the prior, and `values` the sites of draws of θ.

    """
    check_function("NumPyro model", model)
    if not isinstance(rows, Mapping) or not rows:
        raise DataError(f"Give a client's rows as a dict of the model's arguments, not {described(rows)}.")
    check_texts("shared plates", shared)
    check_texts("local plates", local)
    if expectation is not None:
        check_kind("expectation", expectation, Expectation, "use one of partita.expectations", name="an Expectation")
    arrays = real_numbers(dict(rows))
    if len({len(values) for values in arrays.values()}) != 1 or not len(next(iter(arrays.values()))):
        raise DataError("The arguments of the NumPyro model differ in their numbers of rows, or have none: give rows.")
    columns = tuple((str(name), values.shape[1:], values.dtype.str) for name, values in arrays.items())
    sites = read_sites(model, arrays, tuple(shared), tuple(local))
    return NumPyroModel(model, sites, columns, expectation=expectation or CommonDraws())
