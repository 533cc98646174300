"""NumPyro models run unchanged: their sites, their priors, federated as pooled, and what they may not say."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.infer import Predictive
from numpyro.infer.util import log_density, potential_energy
from scipy import special, stats

import partita as pt
from partita.errors import DataError, SettingsError
from partita.models.numpyro_trace import scaled, traced
from partita.models.prior import OutsidePrior
from support.numpyro_models import MODELS, SIZE, X, mixture, parts, start

QUIET = pt.Monitor(progress=False)
METHOD = pt.methods.sequential(pt.solvers.ModeFixedPoint())
PLAIN = [name for name in MODELS if name != "mixture"]


@functools.cache
def read(name):
    function, shared, rows = MODELS[name]
    return pt.from_numpyro(function, rows, shared=shared)


def run(name, method=METHOD, **settings):
    model = read(name)
    clients = pt.federate(parts(MODELS[name][2]))
    return pt.run(method, model, model.prior(), clients, monitor=QUIET, **{"tolerance": 1e-14} | settings)


@pytest.mark.parametrize("name", PLAIN)
def test_the_density_is_that_of_numpyro(name):
    function, _, rows = MODELS[name]
    model = read(name)
    theta = jnp.asarray(np.random.default_rng(1).normal(size=sum(site.size for site in model.sites.shared)) / 2)
    known = jax.jit(lambda free: potential_energy(function, (), rows, free))(model.apart(theta))
    each = jax.jit(jax.vmap(model.log_density, in_axes=(None, 0)))(theta, rows)
    np.testing.assert_allclose(each.sum() + model.log_prior(theta), -known, rtol=1e-10)
    assert len(model.names) == len(theta)
    # and so it is at what it calls by the sites' names
    values = model.values(theta)
    assert {name: np.shape(value) for name, value in values.items()} == shapes(function, rows, model)
    found = jax.jit(lambda values: log_density(function, (), rows, values)[0])(values)
    stretch = jax.jit(lambda free: stretched(traced(function, rows, free, {})))(model.apart(theta))
    np.testing.assert_allclose(found, -known - stretch, rtol=1e-10)


def stretched(trace):
    return sum(scaled(site).sum() for name, site in trace.items() if name.endswith("_log_det"))


def shapes(function, rows, model):
    trace = jax.eval_shape(lambda: {name: site["value"] for name, site in traced(function, rows, {}, {}).items()})
    return {site.name: trace[site.name].shape for site in model.sites.shared}


def test_discrete_sites_are_summed_out():
    model, x = read("mixture"), MODELS["mixture"][2]["x"]
    theta = jnp.array([0.3, -0.5, 0.7])
    values = model.values(theta)
    share, means = float(values["share"]), values["means"]
    assert means[1] > means[0]
    known = np.log((1 - share) * stats.norm.pdf(x, means[0]) + share * stats.norm.pdf(x, means[1]))
    found = jax.jit(jax.vmap(model.log_density, in_axes=(None, 0)))(theta, {"x": x})
    np.testing.assert_allclose(found, known, rtol=1e-10)


def test_a_row_may_have_several_discrete_variables():
    def model(x):
        p = numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
        with numpyro.plate("rows", len(x)):
            a = numpyro.sample("a", dist.Categorical(p))
            b = numpyro.sample("b", dist.Bernoulli(0.3).expand([2]).to_event(1))
            numpyro.sample("x", dist.Normal(a + b.sum(-1), 1.0), obs=x)

    x, theta = X[:3, 0], jnp.array([0.2, -0.3])
    found = pt.from_numpyro(model, {"x": x})
    p = found.values(theta)["p"]
    sums = [(np.log(p[a]) + stats.binom.logpmf(b, 2, 0.3), a + b) for a in range(3) for b in range(3)]
    known = special.logsumexp([log + stats.norm.logpdf(x, at) for log, at in sums], axis=0)
    each = jax.jit(jax.vmap(found.log_density, in_axes=(None, 0)))(theta, {"x": x})
    np.testing.assert_allclose(each, known, rtol=1e-10)


@pytest.mark.parametrize("name", ["logistic", "items"])
def test_a_prior_of_independent_gaussians_is_in_the_family(name):
    found = read(name).prior()
    assert isinstance(found, pt.FullGaussian)
    known = {"logistic": ([0.5, 0.0], [2.0, 2.0]), "items": (np.zeros(8), [1.0] * 5 + [2.0] * 3)}[name]
    np.testing.assert_allclose(found.mean, known[0], atol=1e-9)
    np.testing.assert_allclose(found.sd, known[1], rtol=1e-9)
    near = read(name).prior(pt.MeanFieldGaussian.from_mean_sd)
    np.testing.assert_allclose(near.sd, known[1], rtol=1e-9)


def test_other_priors_are_clients_whose_base_is_as_wide():
    found = read("counts").prior()
    assert isinstance(found, OutsidePrior)
    np.testing.assert_allclose(found.base.sd[:2], 1, rtol=0.1)
    # half-normal: the central 95% of its logarithm
    low, high = np.log(stats.halfnorm.ppf([0.025, 0.975]))
    np.testing.assert_allclose(found.base.sd[2], (high - low) / 2 / 1.96, rtol=0.1)
    # with its Jacobian the prior is one of the logarithm
    at = np.linspace(-12, 3, 4001)
    theta = jnp.asarray(np.column_stack([np.zeros((len(at), 2)), at]))
    masses = np.exp(jax.jit(jax.vmap(read("counts").log_prior))(theta) + np.log(2 * np.pi)) * (at[1] - at[0])
    np.testing.assert_allclose(masses.sum(), 1, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_federated_is_pooled(name):
    method = pt.methods.sequential(pt.solvers.ModeFixedPoint(tolerance=1e-16), start=start(name, len(read(name).names)))
    federated = run(name, method, rounds=200)
    model = read(name)
    pooled = pt.run(
        method, model, model.prior(), pt.federate([MODELS[name][2]]), monitor=QUIET, tolerance=1e-14, rounds=200
    )
    assert federated.status is pt.Status.CONVERGED
    # answers lie within 1e-14 nats of the posterior, 1.4e-7 standard deviations, and errors of several add up
    sd = pooled.posterior.sd
    np.testing.assert_allclose(federated.posterior.mean / sd, pooled.posterior.mean / sd, atol=3e-6)
    np.testing.assert_allclose(federated.posterior.sd, sd, rtol=3e-6)
    np.testing.assert_allclose(federated.free_energy, pooled.free_energy, rtol=1e-9)


def test_draws_are_numpyros():
    near = pt.FullGaussian.from_mean_covariance(np.array([0.8, -0.5, -0.7]), 0.05 * np.eye(3))
    posterior = pt.Posterior(read("counts"), near)
    draws = posterior.draws(200)
    assert {name: value.shape for name, value in draws.items()} == {"b": (200, 2), "scale": (200,)}
    assert (draws["scale"] > 0).all()
    function, _, rows = MODELS["counts"]
    said = Predictive(function, draws)(jax.random.key(0), x=rows["x"])["y"]
    assert said.shape == (200, SIZE)
    np.testing.assert_allclose(said.mean(), rows["y"].mean(), rtol=0.3)
    tree = posterior.to_arviz(draws=200)
    assert tree["posterior"]["b"].shape == (4, 50, 2)
    np.testing.assert_array_equal(tree["posterior"]["scale"].to_numpy().reshape(-1), draws["scale"])


def test_the_prior_may_have_no_support_where_the_run_starts():
    def model(x, y):
        b = numpyro.sample("b", dist.Laplace(0, 1))
        numpyro.factor("positive", jnp.where(b > 0, 0.0, -jnp.inf))
        numpyro.sample("y", dist.Normal(b * x, 1.0), obs=y)

    rows = {"x": X[:, 0], "y": X[:, 1]}
    found = pt.from_numpyro(model, rows)
    with pytest.raises(SettingsError, match="no support where the run starts"):
        pt.run(METHOD, found, found.prior(), pt.federate([rows]), monitor=QUIET)


def shared_and(site):
    def model(x, y=None):
        b = numpyro.sample("b", dist.Normal(0, 1))
        site(x, b)
        numpyro.sample("y", dist.Normal(b * x, 1.0), obs=y)

    return model


def plated(name, law, size=None):
    def site(x, b):
        with numpyro.plate("plate", size or len(x)):
            numpyro.sample(name, law)

    return shared_and(site)


def sized(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("rows", SIZE_OF_PLATE):
        numpyro.sample("y", dist.Normal(b, 1.0), obs=y)


SIZE_OF_PLATE = 7
WRONG = {
    "a site that is neither": (plated("u", dist.Normal(0, 1), 3), {}, "'u' in the plate 'plate' is neither shared nor"),
    "a site of a row": (plated("u", dist.Normal(0, 1)), {}, "'u' in the plate 'plate' is neither shared nor local"),
    "a shared plate of rows": (plated("u", dist.Normal(0, 1)), {"shared": ["plate"]}, "is that of the rows"),
    "a local plate of another size": (
        plated("u", dist.Normal(0, 1), 3),
        {"local": ["plate"]},
        "'plate' is not of the size of the rows: name the argument",
    ),
    "a local plate of no argument": (
        plated("u", dist.Normal(0, 1), 3),
        {"local": {"plate": "person"}},
        "no argument 'person' to name members of 'plate'",
    ),
    "a plate both local and shared": (
        plated("u", dist.Normal(0, 1), 3),
        {"local": {"plate": "y"}, "shared": ["plate"]},
        "declared shared and local",
    ),
    "two local plates": (plated("u", dist.Normal(0, 1)), {"local": ["plate", "wards"]}, "not of plate and wards"),
    "too many local variables": (
        plated("u", dist.Normal(0, 1).expand([4]).to_event(1)),
        {"local": ["plate"]},
        "has 4 variables of its own, where at most 3",
    ),
    "nothing local": (plated("u", dist.Bernoulli(0.5)), {"local": ["plate"]}, "'plate' has no continuous variable"),
    "an unknown plate": (shared_and(lambda x, b: None), {"shared": ["wards"]}, "no plate 'wards'"),
    "an infinite support": (plated("z", dist.Poisson(1.0)), {}, "'z' has no finite support"),
    "a discrete site of all": (shared_and(lambda x, b: numpyro.sample("z", dist.Bernoulli(0.5))), {}, "in no plate"),
    "too many values": (plated("z", dist.Bernoulli(0.5).expand([13]).to_event(1)), {}, "more than 4,096 values"),
    "nothing observed": (lambda x, y: numpyro.sample("b", dist.Normal(0, 1)), {}, "observes nothing of these rows"),
    "nothing to infer": (lambda x, y: numpyro.sample("y", dist.Normal(x, 1), obs=y), {}, "nothing to infer"),
    "a parameter": (shared_and(lambda x, b: numpyro.param("w", 1.0)), {}, "'w' has no prior"),
    "another plate": (sized, {}, "'rows' has the size 7 where there are 60 rows"),
    "rows that depend on each other": (
        lambda x, y: numpyro.sample("y", dist.Normal(numpyro.sample("b", dist.Normal(0, 1)) * x.mean(), 1.0), obs=y),
        {},
        "depend on each other",
    ),
    "a prior of rows": (
        lambda x, y: numpyro.sample("y", dist.Normal(numpyro.sample("b", dist.Normal(3 + x.sum(), 1)), 1.0), obs=y),
        {},
        "depend on",
    ),
    "a model that fails": (lambda x, y: 1 / 0, {}, "fails on 60 rows: division by zero"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_model_may_not_say(case):
    model, given, sentence = WRONG[case]
    with pytest.raises((SettingsError, DataError), match=sentence) as caught:
        pt.from_numpyro(model, {"x": X[:, 0], "y": X[:, 1]}, **given)
    assert str(caught.value).count(". ") == 0
    assert str(caught.value).endswith(".")


def test_what_is_observed_of_a_shared_plate_is_of_the_prior():
    def model(x, y):
        with numpyro.plate("wards", 3):
            u = numpyro.sample("u", dist.Normal(0, 1))
            numpyro.factor("flat", -(u**4))
            numpyro.sample("known", dist.Normal(u, 2.0), obs=np.arange(3.0))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(u[0] * x, 1.0), obs=y)

    rows, theta = {"x": X[:, 0], "y": X[:, 1]}, np.array([0.3, -0.5, 1.0])
    found = pt.from_numpyro(model, rows, shared=["wards"])
    each = jax.jit(jax.vmap(found.log_density, in_axes=(None, 0)))(theta, rows)
    known = log_density(model, (), rows, {"u": theta})[0]
    np.testing.assert_allclose(each.sum() + found.log_prior(theta), known, rtol=1e-10)
    np.testing.assert_allclose(
        found.log_prior(theta),
        np.sum(stats.norm.logpdf(theta) - theta**4 + stats.norm.logpdf(np.arange(3), theta, 2)),
        rtol=1e-10,
    )


@pytest.mark.parametrize("x", [np.zeros(4), np.ones(4), np.full(1, 0.5)])
def test_rows_that_are_all_the_same_show_that_others_depend_on_each_other(x):
    def centred(x, y):
        b = numpyro.sample("b", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(b * (x - x.mean()), 1.0), obs=y)

    with pytest.raises(SettingsError, match="depend on each other"):
        pt.from_numpyro(centred, {"x": x, "y": np.zeros(len(x), int)})


def test_a_plate_of_as_many_as_there_happen_to_be():
    def model(y):
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("rows", SIZE):
            numpyro.sample("y", dist.Normal(b, 1.0), obs=y)

    with pytest.raises(DataError, match="has the size 60 where there is 1 row"):
        pt.from_numpyro(model, {"y": X[:, 0]})


def test_a_prior_that_is_improper():
    model = shared_and(lambda x, b: numpyro.sample("c", dist.ImproperUniform(dist.constraints.real, (), ())))
    with pytest.raises(SettingsError, match="cannot be drawn from on 60 rows: give it a proper distribution"):
        pt.from_numpyro(model, {"x": X[:, 0], "y": X[:, 1]})


def test_rows_are_those_of_the_model():
    model, rows = read("counts"), MODELS["counts"][2]
    with pytest.raises(SettingsError, match="give a dict of x, y"):
        pt.run(METHOD, model, model.prior(), pt.federate([{"x": X}]), monitor=QUIET)
    with pytest.raises(SettingsError, match="x has the shape"):
        pt.run(METHOD, model, model.prior(), pt.federate([rows | {"x": X[:, :1]}]), monitor=QUIET)
    with pytest.raises(DataError, match="give rows"):
        pt.from_numpyro(mixture, {"x": np.zeros(0)})
    with pytest.raises(DataError, match="Give a client's rows as a dict"):
        pt.from_numpyro(mixture, X)


def test_without_its_rows_a_model_is_the_same_in_another_process():
    """Nothing of the rows that it was read with is kept."""
    function, _, rows = MODELS["counts"]
    other = {name: values[::-1][:4] for name, values in rows.items()}
    leaves = ravel_pytree([leaf for leaf in jax.tree.leaves(read("counts")) if eqx_array(leaf)])[0]
    assert leaves.size == 0
    assert pt.from_numpyro(function, other).columns == read("counts").columns


def eqx_array(leaf):
    return hasattr(leaf, "dtype")


MEETING = {
    "batch normalisation": lambda x: (x - x.mean()) * 1e-6 + x,
    "a sum so far": lambda x: x + 1e-9 * jnp.cumsum(x),
    "the row before": lambda x: x + 1e-9 * jnp.roll(x, 1),
}


@pytest.mark.parametrize("case", MEETING)
def test_rows_that_hardly_depend_on_each_other_are_noticed(case):
    def model(x, y):
        b = numpyro.sample("b", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(b * MEETING[case](x), 1.0), obs=y)

    with pytest.raises(SettingsError, match="depend on each other"):
        pt.from_numpyro(model, {"x": X[:, 0], "y": X[:, 1]})


def test_handlers_of_a_shared_site_are_numpyros():
    """A scale weights a variable's log density together with the stretch of its bijection."""

    def model(x, y):
        with numpyro.handlers.scale(scale=0.3):
            s = numpyro.sample("s", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(0.0, s), obs=y)

    rows, theta = {"x": X[:, 0], "y": X[:, 1]}, jnp.array([-0.4])
    found = pt.from_numpyro(model, rows)
    each = jax.jit(jax.vmap(found.log_density, in_axes=(None, 0)))(theta, rows)
    known = potential_energy(model, (), rows, {"s": theta[0]})
    np.testing.assert_allclose(each.sum() + found.log_prior(theta), -known, rtol=1e-10)


def test_predictions_are_numpyros():
    posterior = pt.Posterior(read("counts"), pt.FullGaussian.standard_normal(3))
    with pytest.raises(SettingsError, match=r"numpyro\.infer\.Predictive\(counts, posterior\.draws"):
        posterior.predict(X)
