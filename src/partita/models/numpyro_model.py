"""A NumPyro model as a likelihood of rows and a prior: its shared sites are θ, without constraints in one vector."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import enable_x64
from jaxtyping import Array, Float, Key, Num, PyTree

from partita.data.shard import real_numbers
from partita.errors import DataError, SettingsError
from partita.expectations import CommonDraws, Expectation
from partita.families import Family, FullGaussian
from partita.inputs import check_function, check_kind, check_seed, check_texts, described
from partita.models.base import Model, check_finite
from partita.models.integral import drawn, log_integral
from partita.models.numpyro_members import Members, grouped
from partita.models.numpyro_rows import check_rows
from partita.models.numpyro_sites import Local, Sites, Variables, read_sites
from partita.models.numpyro_trace import Rows, Trace, failing, total, traced
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
    support. A row's discrete variables are summed out, and local ones are integrated out, so that nothing of them is
    in q, in factors or in what is sent.
    """

    function: Callable[..., Any] = eqx.field(static=True)
    sites: Sites
    columns: tuple[tuple[str, tuple[int, ...], str], ...] = eqx.field(static=True)
    """Of every argument that rows have: its name, its shape in one row, and its type."""
    expectation: Expectation = eqx.field(kw_only=True)

    def log_density(self, theta: Float[Array, " d"], datum: PyTree) -> Float[Array, ""]:
        """Of a row; or of a member of the local plate with all of its rows, whose own variables are integrated out."""
        if self.sites.local is None:
            return self._row(theta, {}, datum)
        return log_integral(lambda theta, u: self._joint(theta, u, datum), theta, self.sites.local.size)

    def _joint(self, theta: Float[Array, " d"], u: Float[Array, " l"], datum: PyTree) -> Float[Array, ""]:
        """log p(y, u | θ) of a member and its variables, without constraints."""
        own = _apart(_local(self).sites, u)
        if not isinstance(datum, Members):
            return self._row(theta, own, datum)
        each = jax.vmap(lambda row: self._row(theta, own, row))(datum.rows)
        trace = self.without_rows(self.apart(theta) | own)
        return total(trace, [site.name for site in _local(self).sites]) + datum.counts @ each

    def _row(self, theta: Float[Array, " d"], own: Mapping[str, Array], datum: Mapping[str, Array]) -> Float[Array, ""]:
        rows, free = {name: value[None] for name, value in datum.items()}, self.apart(theta) | dict(own)
        names = (*self.sites.observed, *self.sites.discrete, *(() if self._named_members else own))

        def joint(discrete: Mapping[str, Array]) -> Float[Array, ""]:
            return total(traced(self.function, rows, free, self._one_member | dict(discrete)), names)

        if not self.sites.discrete:
            return joint({})
        return jax.nn.logsumexp(jax.vmap(joint)(jax.tree.map(jnp.asarray, self.sites.discrete)))

    @property
    def _named_members(self) -> bool:
        """Whether rows name the member of a local plate that they are of."""
        return self.sites.local is not None and self.sites.local.column is not None

    @property
    def _one_member(self) -> dict[str, Array]:
        """The local plate with one member, whatever size the model gives it."""
        return {_local(self).plate: jnp.arange(1)} if self._named_members else {}

    def members(self, clients: Sequence[Rows]) -> list[Members]:
        """The rows of all clients that are at hand, by members of the local plate, for `federate`.

        A member with all of its rows is then what is called a row elsewhere.
        """
        local = _local(self)
        if local.column is None:
            raise SettingsError(f"Every row is a member of the local plate {local.plate!r} itself: federate the rows.")
        found = grouped(clients, local.plate, local.column)
        for each in found:
            try:
                self.check(each)
            except DataError as error:
                raise DataError(f"The rows cannot be grouped: {str(error).rstrip('.')}.") from None
        return found

    def check(self, data: "Rows | Members") -> None:
        names, rows, ahead = [name for name, *_ in self.columns], data, 1
        if self._named_members:
            if not isinstance(data, Members):
                raise DataError("the rows are not by members of the local plate: federate model.members(clients)")
            rows, ahead = data.rows, 2
        if not isinstance(rows, Mapping) or set(rows) != set(names):
            raise DataError(f"the rows are not those of the NumPyro model: give a dict of {', '.join(names)}")
        for name, shape, kind in self.columns:
            found = np.asarray(rows[name])
            if found.shape[ahead:] != shape:
                raise DataError(
                    f"{name} has the shape {found.shape[ahead:]} in a row where the model was read with {shape}"
                )
            if np.issubdtype(found.dtype, np.floating) and not np.issubdtype(np.dtype(kind), np.floating):
                raise DataError(f"{name} holds fractions where the model was read with whole numbers: give those")
        check_finite(data)

    def log_prior(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        """log p(θ), of θ without constraints."""
        names = *(site.name for site in self.sites.shared), *self.sites.given
        return total(self.without_rows(self.apart(theta)), names)

    def values(self, theta: Float[Array, "... d"]) -> dict[str, Num[np.ndarray, "..."]]:
        """The shared sites at draws of θ, as `numpyro.infer.Predictive` takes posterior samples."""
        found = _values(self, jnp.asarray(theta))
        return {name: np.asarray(value) for name, value in found.items()}

    def values_of_members(
        self, theta: Float[Array, "s d"], data: "Rows | Members", seed: int = 0
    ) -> dict[str, Num[np.ndarray, "s ..."]]:
        """Draws of a client's own local sites that belong to draws of θ, given its rows; only it can make them.

        With those of `values` they are what `numpyro.infer.Predictive` predicts these members by. Without them it
        draws members that are new.
        """
        check_seed(seed)
        try:
            self.check(data)
        except DataError as error:
            raise DataError(f"The rows cannot be used: {str(error).rstrip('.')}.") from None
        found = _values_of_members(self, jnp.asarray(theta), data, jax.random.key(seed))
        local = _local(self)
        axes = {site.name: axis for site, axis in zip(local.sites, local.axes, strict=True)}
        return {name: np.moveaxis(np.asarray(value), 1, axes[name] + 1) for name, value in found.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each element of θ, which says so where it is not the variable itself."""
        named = list[str]()
        for site in self.sites.shared:
            label = site.name if site.real else f"unconstrained {site.name}"
            places = [",".join(map(str, place)) for place in np.ndindex(*site.shape)]
            named += [f"{label}[{place}]" if place else label for place in places]
        return tuple(named)

    @property
    def how_to_predict(self) -> str:
        """By NumPyro."""
        named = getattr(self.function, "__name__", "model")
        own = ", and to those draws add values_of_members for a client's own members" if self.sites.local else ""
        return (
            f"A NumPyro model predicts by NumPyro: give numpyro.infer.Predictive({named}, posterior.draws()) "
            f"a key and the rows without their response{own}."
        )

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
        return _apart(self.sites.shared, theta)

    def without_rows(self, free: Mapping[str, Array], key: Key[Array, ""] | None = None) -> Trace:
        """The model's trace on a row of zeros, on which shared sites do not depend."""
        kinds = {name: (shape, jax.dtypes.canonicalize_dtype(kind)) for name, shape, kind in self.columns}
        zeros = {name: jnp.zeros((1, *shape), kind) for name, (shape, kind) in kinds.items()}
        return traced(self.function, zeros, free, self._one_member, key)


class _PriorOfSites(Model):
    """The prior of a NumPyro model's shared sites."""

    model: NumPyroModel
    expectation: Expectation = eqx.field(kw_only=True)

    def log_density(self, theta: Float[Array, " d"], datum: Float[Array, ""]) -> Float[Array, ""]:
        return self.model.log_prior(theta)


def _local(model: NumPyroModel) -> Local:
    if model.sites.local is None:
        raise SettingsError("The NumPyro model has no plate of local variables: name one in local.")
    return model.sites.local


def _apart(sites: Sequence[Variables], values: Float[Array, " d"]) -> dict[str, Float[Array, "..."]]:
    """One vector as the sites' values without constraints."""
    parts = jnp.split(values, np.cumsum([site.size for site in sites])[:-1])
    return {site.name: part.reshape(site.shape) for site, part in zip(sites, parts, strict=True)}


def _full(mean: Float[np.ndarray, " d"], sd: Float[np.ndarray, " d"]) -> Family:
    return FullGaussian.from_mean_covariance(mean, np.diag(sd**2))


@Compiled
def _values(model: NumPyroModel, theta: Float[Array, "... d"]) -> dict[str, Num[Array, "..."]]:
    def one(theta: Float[Array, " d"]) -> dict[str, Num[Array, "..."]]:
        trace = model.without_rows(model.apart(theta))
        return {site.name: trace[site.name]["value"] for site in model.sites.shared}

    found = jax.lax.map(one, theta.reshape(-1, theta.shape[-1]), batch_size=_TOGETHER)
    return {name: value.reshape(*theta.shape[:-1], *value.shape[1:]) for name, value in found.items()}


@Compiled
def _values_of_members(
    model: NumPyroModel, theta: Float[Array, "s d"], data: PyTree, key: Key[Array, ""]
) -> dict[str, Num[Array, "s g ..."]]:
    local = _local(model)

    def member(theta: Float[Array, " d"], datum: PyTree, key: Key[Array, ""]) -> dict[str, Num[Array, "..."]]:
        u = drawn(lambda u: model._joint(theta, u, datum), local.size, key, theta.dtype)
        free = model.apart(theta) | _apart(local.sites, u)
        row = {} if isinstance(datum, Members) else {name: value[None] for name, value in datum.items()}
        trace = traced(model.function, row, free, {}) if row else model.without_rows(free)
        return {
            site.name: jnp.squeeze(trace[site.name]["value"], axis)
            for site, axis in zip(local.sites, local.axes, strict=True)
        }

    def one(pair: tuple[Float[Array, " d"], Key[Array, ""]]) -> dict[str, Num[Array, "g ..."]]:
        keys = jax.random.split(pair[1], len(jax.tree.leaves(data)[0]))
        return jax.vmap(member, in_axes=(None, 0, 0))(pair[0], data, keys)

    return jax.lax.map(one, (theta, jax.random.split(key, len(theta))))


@Compiled
def _prior_draws(model: NumPyroModel, key: Key[Array, ""]) -> Float[Array, "s d"]:
    """Draws of θ from the prior."""
    from numpyro.distributions import biject_to

    def one(key: Key[Array, ""]) -> Float[Array, " d"]:
        trace = model.without_rows({}, key)
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
    local: Collection[str] | Mapping[str, str] = (),
    expectation: Expectation | None = None,
) -> NumPyroModel:
    """A NumPyro model as a likelihood for `run`, with its prior.

    Sites in no plate are shared by all clients; a row's own discrete sites are summed out.

    Args:
        model: a function with `numpyro.sample` sites. Its arguments are rows; bind others with `functools.partial`.
        rows: by the names of the arguments, as each client has them; also made-up ones. Only their shapes are kept.
        shared: the names of plates, such as of groups, whose variables all clients share.
        local: the plate whose variables belong to one client, with the argument that says which of its members a row
            is of, such as `{"people": "person"}`; or `["rows"]`, if every row has its own. They are integrated out, by
            quadrature around their mode, up to three of a member. The plate may have any size.
        expectation: how E_q of a row's log density is computed; `CommonDraws()` if None.

    Returns:
        The likelihood; `prior()` makes the prior, and `values` the sites of draws of θ.

    """
    check_function("NumPyro model", model)
    if not isinstance(rows, Mapping) or not rows:
        raise DataError(f"Give a client's rows as a dict of the model's arguments, not {described(rows)}.")
    check_texts("shared plates", shared)
    check_texts("local plates", list(local) if isinstance(local, Mapping) else local)
    columns_of = dict(local) if isinstance(local, Mapping) else dict.fromkeys(local)
    if len(columns_of) > 1:
        raise SettingsError(f"Members of one plate can be local, not of {' and '.join(columns_of)}: share the others.")
    if expectation is not None:
        check_kind("expectation", expectation, Expectation, "use one of partita.expectations", name="an Expectation")
    arrays = real_numbers(dict(rows))
    if len({len(values) for values in arrays.values()}) != 1 or not len(next(iter(arrays.values()))):
        raise DataError("The arguments of the NumPyro model differ in their numbers of rows, or have none: give rows.")
    columns = tuple((str(name), values.shape[1:], values.dtype.str) for name, values in arrays.items())
    for plate, column in columns_of.items():
        if column is not None and column not in arrays:
            raise SettingsError(f"The NumPyro model has no argument {column!r} to name members of {plate!r}: give one.")
    sites = read_sites(model, arrays, tuple(shared), columns_of)
    check_rows(model, arrays, sites)
    found = NumPyroModel(model, sites, columns, expectation=expectation or CommonDraws())
    if sites.local is not None:
        _check_accurate(found, sites.local, arrays)
    return found


def _check_accurate(model: NumPyroModel, local: Local, rows: Rows) -> None:
    """Raises an `InputError` where the integral over local variables is no number at 0, though what it is of is one."""
    data = dict(rows) if local.column is None else grouped([rows], local.plate, local.column)[0]
    with enable_x64(True), failing("as its local variables are integrated out"):
        inside, integrals = (np.asarray(each) for each in _at_zero(model, data))
    if (np.isfinite(inside) & np.isnan(integrals)).any():
        raise SettingsError(
            f"The integral over the local variables of {local.plate!r} is not accurate: they have modes far apart, or "
            "kinks or long tails in several variables; give them smoother laws, or fewer to a member."
        )


@Compiled
def _at_zero(model: NumPyroModel, data: PyTree) -> tuple[Float[Array, " g"], Float[Array, " g"]]:
    """Of each member log p(y, u | θ) and its integral, at zeros."""
    theta = jnp.zeros(sum(site.size for site in model.sites.shared))
    u = jnp.zeros(_local(model).size)
    inside = jax.vmap(lambda datum: model._joint(theta, u, datum))(data)
    return inside, jax.vmap(lambda datum: model.log_density(theta, datum))(data)
