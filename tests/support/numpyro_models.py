"""NumPyro models as users write them, with rows of theirs."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import partita as pt

GENERATOR = np.random.default_rng(7)
SIZE = 60
X = GENERATOR.normal(size=(SIZE, 2))
CLINIC = np.arange(SIZE) % 4


def logistic(x, y=None):
    """All priors are Gaussian, and there is no plate."""
    b = numpyro.sample("b", dist.Normal(jnp.array([0.5, 0.0]), 2.0).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ b), obs=y)


def slopes(x, clinic, y=None):
    """An intercept and a slope of each clinic."""
    mean = numpyro.sample("mean", dist.Normal(0, 2).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfNormal(0.5).expand([2]).to_event(1))
    with numpyro.plate("clinics", 4):
        u = numpyro.sample("u", dist.Normal(0, 1).expand([2]).to_event(1))
    b = (mean + tau * u)[clinic]
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(b[:, 0] + b[:, 1] * x[:, 0], 0.5), obs=y)


def counts(x, y=None):
    """Negative binomial, whose dispersion has a half-normal prior."""
    b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(x @ b), 1 / scale), obs=y)


def mixture(x):
    """A row's component is summed out; means are in order, so that components do not change places."""
    share = numpyro.sample("share", dist.Beta(2, 2))
    means = numpyro.sample(
        "means", dist.TransformedDistribution(dist.Normal(0, 3).expand([2]), dist.transforms.OrderedTransform())
    )
    with numpyro.plate("rows", len(x)):
        z = numpyro.sample("z", dist.Bernoulli(share), infer={"enumerate": "parallel"})
        numpyro.sample("x", dist.Normal(means[z], 1.0), obs=x)


def items(person, item, y=None):
    """Item response: abilities of five people, difficulties of three items."""
    with numpyro.plate("people", 5):
        ability = numpyro.sample("ability", dist.Normal(0, 1))
    with numpyro.plate("items", 3):
        difficulty = numpyro.sample("difficulty", dist.Normal(0, 2))
    with numpyro.plate("answers", len(person)):
        numpyro.sample("y", dist.Bernoulli(logits=ability[person] - difficulty[item]), obs=y)


def network(x, y=None):
    """A Bayesian neural network of three hidden units."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2, 3]).to_event(2))
    v = numpyro.sample("v", dist.Normal(0, 1).expand([3]).to_event(1))
    noise = numpyro.sample("noise", dist.Gamma(3.0, 10.0))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(jnp.tanh(x @ w) @ v, noise), obs=y)


def abilities(person, item, y=None):
    """Item response: every person answers at one place, and the size of the plate does not matter."""
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("items", 3):
        difficulty = numpyro.sample("difficulty", dist.Normal(0, 2))
    with numpyro.plate("people", 12):
        ability = numpyro.sample("ability", dist.Normal(0, spread))
    with numpyro.plate("answers", len(person)):
        numpyro.sample("y", dist.Bernoulli(logits=ability[person] - difficulty[item]), obs=y)


def lines(x, group, y=None):
    """An intercept and a slope of each group, given their means and spreads."""
    mean = numpyro.sample("mean", dist.Normal(0, 2).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfNormal(0.5).expand([2]).to_event(1))
    with numpyro.plate("groups", 12):
        b = numpyro.sample("b", dist.Normal(mean, tau).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(b[group, 0] + b[group, 1] * x, 0.5), obs=y)


def frailties(x, y=None):
    """Every row has a positive factor of its own, whose law depends on what the row brings."""
    shape = numpyro.sample("shape", dist.Gamma(4.0, 2.0))
    with numpyro.plate("rows", len(x)):
        z = numpyro.sample("z", dist.Gamma(shape, jnp.exp(x)))
        numpyro.sample("y", dist.Poisson(z), obs=y)


_LOGIT = X @ [0.8, -0.5]
_OF_CLINIC = GENERATOR.normal(size=(4, 2))[CLINIC]
_PERSON, _ITEM = np.arange(SIZE) % 5, np.arange(SIZE) // 5 % 3
MODELS = {
    "logistic": (logistic, (), {"x": X, "y": (GENERATOR.logistic(size=SIZE) < _LOGIT).astype(int)}),
    "slopes": (
        slopes,
        ("clinics",),
        {
            "x": X,
            "clinic": CLINIC,
            "y": _OF_CLINIC[:, 0] + (1 + _OF_CLINIC[:, 1] / 2) * X[:, 0] + GENERATOR.normal(size=SIZE) / 2,
        },
    ),
    "counts": (counts, (), {"x": X, "y": GENERATOR.poisson(GENERATOR.gamma(2, np.exp(_LOGIT) / 2))}),
    "mixture": (mixture, (), {"x": GENERATOR.normal(size=SIZE) + 3.0 * (np.arange(SIZE) % 3 == 0)}),
    "items": (
        items,
        ("people", "items"),
        {
            "person": _PERSON,
            "item": _ITEM,
            "y": (GENERATOR.logistic(size=SIZE) < 0.5 * _PERSON - _ITEM).astype(int),
        },
    ),
    "network": (network, (), {"x": X, "y": np.tanh(X[:, 0]) - np.tanh(X[:, 1]) + GENERATOR.normal(size=SIZE) / 4}),
}
"""By name: the model, its plates that all clients share, and rows."""
_GROUP = np.arange(SIZE) % 12
_OF_GROUP = GENERATOR.normal(size=(12, 2))[_GROUP]
LOCAL = {
    "abilities": (
        abilities,
        {"shared": ["items"], "local": {"people": "person"}},
        {
            "person": _GROUP,
            "item": np.arange(SIZE) // 12 % 3,
            "y": (GENERATOR.logistic(size=SIZE) < _OF_GROUP[:, 0] + 1 - np.arange(SIZE) // 12 % 3).astype(int),
        },
    ),
    "lines": (
        lines,
        {"local": {"groups": "group"}},
        {
            "x": X[:, 0],
            "group": _GROUP,
            "y": 0.5 * _OF_GROUP[:, 0] + (1 + _OF_GROUP[:, 1] / 2) * X[:, 0] + GENERATOR.normal(size=SIZE) / 2,
        },
    ),
    "slopes": (slopes, {"local": {"clinics": "clinic"}}, MODELS["slopes"][2]),
    "frailties": (
        frailties,
        {"local": ["rows"]},
        {"x": X[:, 1] / 2, "y": GENERATOR.poisson(GENERATOR.gamma(2, np.exp(-X[:, 1] / 2)))},
    ),
}
"""By name: the model, whose its plates are, and rows."""


def dealt(name, model, clients=3):
    """The rows of each client by members, of which none has rows at two."""
    _, told, rows = LOCAL[name]
    if not isinstance(told["local"], dict):
        return parts(rows, clients)
    owner = rows[next(iter(told["local"].values()))] % clients
    return model.members([{each: values[owner == k] for each, values in rows.items()} for k in range(clients)])


def parts(rows, clients=3):
    """The rows of each client."""
    return [{name: values[k::clients] for name, values in rows.items()} for k in range(clients)]


def start(name, size):
    """A tight start that tells the units of a network apart; None for the others."""
    if name != "network":
        return None
    return pt.FullGaussian.from_mean_covariance(np.random.default_rng(4).normal(size=size), 0.1 * np.eye(size))
