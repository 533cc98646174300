"""Networks of other libraries and plain functions: what reaches the units of dense layers is drawn, not weights."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import partita as pt
from partita.errors import SettingsError
from partita.models import NetworkClassifier

GENERATOR = np.random.default_rng(5)
X = GENERATOR.normal(size=(30, 4))
Y = (X[:, 0] * X[:, 1] > 0).astype(float)
TABLE = pt.Table(X, Y)
OURS = NetworkClassifier((4, 3, 2))
QUIET = pt.Monitor(progress=False)


def loss(outputs, y):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, y.astype(int))


def plain(parameters, x):
    first, second = parameters
    hidden = jax.nn.relu(x @ first["weight"].T + first["bias"])
    return hidden @ second["weight"].T + second["bias"]


def member(like):
    leaves, tree = jax.tree.flatten(like)
    mean = [jnp.asarray(GENERATOR.normal(size=leaf.shape)) for leaf in leaves]
    sd = [jnp.asarray(GENERATOR.uniform(0.1, 0.5, size=leaf.shape)) for leaf in leaves]
    return pt.MeanFieldGaussian.from_mean_sd(jax.tree.unflatten(tree, mean), jax.tree.unflatten(tree, sd))


def mlp():
    """Equinox's own network, whose layers take one row each, with parameters apart from what is fixed."""
    network = eqx.nn.MLP(4, 2, 3, 1, key=jax.random.key(0), dtype=float)
    parameters, static = eqx.partition(network, eqx.is_inexact_array)
    return parameters, lambda parameters, x: jax.vmap(eqx.combine(parameters, static))(x)


def test_a_plain_function_draws_what_our_network_draws():
    theirs = pt.from_apply(plain, OURS.template(), loss)
    assert isinstance(theirs.expectation, pt.expectations.LocalReparameterisation)
    q = member(OURS.template())
    shared = theirs.shared(q, TABLE)
    noise = jnp.asarray(GENERATOR.normal(size=OURS.noise_shape(OURS.shared(q, TABLE))))
    assert theirs.noise_shape(shared) == noise.shape
    known = OURS.predictor_at(OURS.shared(q, TABLE), noise)
    found = jax.jit(theirs.predictor_at)(shared, noise)
    np.testing.assert_allclose(found, known, rtol=1e-12)
    np.testing.assert_allclose(theirs.log_density_at(found, TABLE), OURS.log_density_at(known, TABLE), rtol=1e-12)


def test_equinoxs_network_is_gone_through_as_well():
    parameters, apply = mlp()
    model = pt.from_apply(apply, parameters, loss)
    assert isinstance(model.expectation, pt.expectations.LocalReparameterisation)
    q = member(parameters)
    assert model.noise_shape(model.shared(q, TABLE)) == (5, 30)
    # without noise the pass is the network at the mean
    still = jax.jit(model.predictor_at)(model.shared(q, TABLE), jnp.zeros((5, 30)))
    np.testing.assert_allclose(still, apply(q.mean, X), rtol=1e-12)


def scaled(parameters, x):
    """Layer normalisation, a residual connection, and a weight divided by a number."""
    hidden = jnp.tanh(x @ (parameters["in"] / 2.0))
    normal = (hidden - hidden.mean(-1, keepdims=True)) / jnp.sqrt(hidden.var(-1, keepdims=True) + 1e-3)
    normal = normal * parameters["scale"] + parameters["shift"]
    return (x[:, :3] - normal) @ -parameters["out"]


LAYERS = {
    "in": jnp.zeros((4, 3)),
    "scale": jnp.zeros(3),
    "shift": jnp.zeros(3),
    "out": jnp.zeros((3, 2)),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ["scaled", "equinox"])
def test_local_draws_have_the_distribution_of_draws_of_weights(case):
    parameters, apply = (LAYERS, scaled) if case == "scaled" else mlp()
    model, q, draws = pt.from_apply(apply, parameters, loss), member(parameters), 40_000
    shared = model.shared(q, pt.Table(X[:3], Y[:3]))
    noise = np.random.default_rng(1).normal(size=(draws, *model.noise_shape(shared)))
    local = jax.jit(jax.vmap(model.predictor_at, in_axes=(None, 0)))(shared, noise)
    whole = jax.jit(jax.vmap(apply, in_axes=(0, None)))(q.sample(jax.random.key(2), (draws,)), X[:3])
    for power in (1, 2):
        first, second = ((each**power).mean(0) for each in (local, whole))
        # five standard errors of the difference
        error = np.sqrt(((local**power).var(0) + (whole**power).var(0)) / draws)
        assert (np.abs(first - second) < 5 * error).all()
    # outputs of one row are correlated, as hidden units are shared
    mixed = [(each[..., 0] * each[..., 1]) for each in (local, whole)]
    error = np.sqrt(sum(each.var(0) for each in mixed) / draws)
    assert (np.abs(mixed[0].mean(0) - mixed[1].mean(0)) < 5 * error).all()


def convolution(parameters, x):
    images = x.reshape(-1, 1, 2, 2)
    hidden = jax.lax.conv_general_dilated(images, parameters["kernel"], (1, 1), "SAME")
    return hidden.reshape(len(x), -1) @ parameters["out"]


def twice(parameters, x):
    return x @ parameters["w"] @ parameters["w"][:, :2]


OTHERS = {
    "a convolution": (convolution, {"kernel": jnp.ones((2, 1, 2, 2)), "out": jnp.ones((8, 2))}),
    "a weight that is used twice": (twice, {"w": jnp.ones((4, 4))}),
    "a weight for several positions of a row": (
        lambda p, x: (x.reshape(-1, 2, 2) @ p["w"]).sum(axis=1),
        {"w": jnp.ones((2, 4))},
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_networks_share_draws_of_weights(case):
    apply, parameters = OTHERS[case]
    model = pt.from_apply(apply, parameters, loss)
    assert isinstance(model.expectation, pt.expectations.MonteCarlo)
    asked = pt.from_apply(apply, parameters, loss, expectation=pt.expectations.LocalReparameterisation())
    with pytest.raises(SettingsError, match="use MonteCarlo"):
        asked.shared(member(parameters), TABLE)


@pytest.mark.slow
def test_it_is_fitted_as_our_network_is():
    """The same prior, start, seed and draws give the same run."""
    theirs = pt.from_apply(plain, OURS.template(), loss, response=jax.nn.softmax)
    prior = pt.MeanFieldGaussian.standard_normal(OURS.template())
    start = pt.MeanFieldGaussian.tight(OURS.template(), seed=0)
    method = pt.methods.sequential(pt.Gradient(max_steps=20), start=start)
    clients = pt.federate([pt.Table(X[k::2], Y[k::2]) for k in range(2)])
    first, second = (pt.run(method, model, prior, clients, rounds=2, monitor=QUIET) for model in (theirs, OURS))
    for a, b in zip(jax.tree.leaves(first.posterior.mean), jax.tree.leaves(second.posterior.mean), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(first.free_energy, second.free_energy, rtol=1e-6)
    found = first.posterior.predict(X, how="monte_carlo")
    np.testing.assert_allclose(found, second.posterior.predict(X, how="monte_carlo"), rtol=1e-5)
    assert set(first.posterior.draws(8)) == {"0.bias", "0.weight", "1.bias", "1.weight"}


def test_the_loss_is_of_every_row():
    model = pt.from_apply(plain, OURS.template(), lambda outputs, y: loss(outputs, y).mean())
    with pytest.raises(SettingsError, match="give one number a row"):
        model.log_density_at(jnp.zeros((30, 2)), TABLE)


def test_parameters_are_arrays():
    for parameters in ({}, {"w": "text"}, {"w": jnp.ones(3, int)}):
        with pytest.raises(SettingsError, match="Give the parameters as a pytree of arrays"):
            pt.from_apply(plain, parameters, loss)


NORMALISED = {
    "batch normalisation": lambda p, x: plain(p, (x - x.mean(0)) / (1 + x.std(0))),
    "a sum so far": lambda p, x: plain(p, x + 1e-9 * jnp.cumsum(x, axis=0)),
    "the rows to come": lambda p, x: plain(p, x[::-1]),
}


@pytest.mark.parametrize("case", NORMALISED)
def test_rows_that_depend_on_each_other_are_noticed(case):
    model = pt.from_apply(NORMALISED[case], OURS.template(), loss)
    with pytest.raises(pt.InputError, match="depend on other rows, as with batch normalisation"):
        model.check(TABLE)
    pt.from_apply(plain, OURS.template(), loss).check(TABLE)
