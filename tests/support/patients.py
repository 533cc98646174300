"""A small table of patients at three hospitals, which tests of fits share, and fits of it."""

import functools

import numpy as np
import pandas

import partita as pt

FORMULAS = {
    "bernoulli": "died ~ age + sex + ward",
    "poisson": "visits ~ age + sex + offset(log(days))",
    "gaussian": "pressure ~ age + sex",
    "probit": "died ~ age",
}


def patients(size=420, seed=3):
    generator = np.random.default_rng(seed)
    frame = pandas.DataFrame(
        {
            "age": generator.normal(60, 12, size),
            "sex": generator.choice(["f", "m"], size, p=[0.6, 0.4]),
            "days": generator.integers(10, 400, size).astype(float),
            "weight": generator.integers(1, 4, size).astype(float),
            "hospital": generator.choice(["Hull", "Leeds", "York"], size),
        }
    )
    risk = -0.5 + 0.03 * (frame.age - 60) + 0.5 * (frame.sex == "m")
    frame["died"] = (generator.random(size) < 1 / (1 + np.exp(-risk))).astype(int)
    frame["visits"] = generator.poisson(frame.days * np.exp(-5 + 0.01 * (frame.age - 60)))
    frame["pressure"] = 120 + 0.5 * (frame.age - 60) + 4 * (frame.sex == "m") + generator.normal(0, 9, size)
    frame["ward"] = generator.choice(["a", "b", "c"], size, p=[0.5, 0.3, 0.2])
    return frame


PATIENTS = patients()


@functools.cache
def fitted(family, formula=None, sites="hospital", prior="normal(0, 2.5)"):
    """A fit of the table, made once."""
    return pt.fit(formula or FORMULAS[family], PATIENTS, family=family, sites=sites, prior=prior)
