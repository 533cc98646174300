"""A small table with a response for each likelihood, and its fits, made once."""

import functools

import numpy as np
import pandas
from scipy import special

import partita as pt

FAMILIES = {
    "gaussian": ("normal ~ x", {}),
    "inferred noise": ("normal ~ x", {"noise": "inferred"}),
    "student_t": ("robust ~ x", {}),
    "bernoulli": ("label ~ x", {}),
    "probit": ("label ~ x", {}),
    "binomial": ("events ~ x", {"trials": "trials"}),
    "poisson": ("counts ~ x", {}),
    "negative_binomial": ("spread ~ x", {}),
    "zero_inflated_poisson": ("zeros ~ x", {}),
    "zero_inflated_negative_binomial": ("zeros ~ x", {}),
    "gamma": ("cost ~ x", {}),
    "beta": ("share ~ x", {}),
    "ordinal": ("grade ~ x", {"levels": ["none", "mild", "severe"]}),
    "multinomial": ("choice ~ x", {"levels": ["a", "b", "c"]}),
    "weibull": ("days ~ x", {"event": "died"}),
    "exponential": ("days ~ x", {"event": "died"}),
    "piecewise_exponential": ("days ~ x", {"event": "died", "cuts": [40, 90]}),
}
"""The formula and the settings of each."""
FAMILIES = {
    name: (formula, {"family": "gaussian" if name == "inferred noise" else name, **settings})
    for name, (formula, settings) in FAMILIES.items()
}


def table(size=240, seed=0):
    """A covariate, two sites, and a response for each likelihood."""
    rng = np.random.default_rng(seed)
    x = rng.normal(50, 10, size)
    eta = 0.3 + 0.04 * (x - 50)
    mean, chance = np.exp(eta), special.expit(eta)
    frame = pandas.DataFrame({"x": x, "site": np.repeat(["A", "B"], size // 2)})
    frame["normal"], frame["robust"] = 20 + 5 * eta + rng.normal(0, 4, size), 20 + 5 * eta + 3 * rng.standard_t(5, size)
    frame["trials"] = rng.integers(1, 9, size)
    frame["label"], frame["events"] = (rng.random(size) < chance) * 1, rng.binomial(frame.trials, chance)
    frame["counts"], frame["spread"] = rng.poisson(mean), rng.negative_binomial(2, 2 / (2 + mean))
    frame["zeros"] = np.where(rng.random(size) < 0.3, 0, rng.negative_binomial(3, 3 / (3 + 2 * mean)))
    frame["cost"], frame["share"] = 100 * rng.gamma(3, mean / 3), rng.beta(8 * chance, 8 * (1 - chance))
    frame["grade"] = np.array(["none", "mild", "severe"])[np.digitize(eta + rng.logistic(size=size), [-0.5, 1])]
    logits = np.column_stack([np.zeros(size), eta, -eta / 2])
    frame["choice"] = np.array(["a", "b", "c"])[(logits + rng.gumbel(size=logits.shape)).argmax(1)]
    time, until = 60 * mean * rng.exponential(size=size), rng.exponential(200, size)
    frame["days"], frame["died"] = np.minimum(time, until), (time <= until) * 1
    return frame


FRAME = table()


@functools.cache
def fitted_family(name):
    """The fit of a likelihood, made once."""
    formula, settings = FAMILIES[name]
    return pt.fit(formula, FRAME, sites="site", **settings)
