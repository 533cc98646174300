"""Every mistake gives one clear sentence that names the culprit, and changes nothing."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import partita as pt
from partita.data import federate
from partita.engines import LocalEngine, local
from partita.server.state import init
from support.problems import MODEL, PARTS, PRIOR, SOLVER, faulty, improper, not_finite

GOOD = pt.Table(np.ones((4, 3)), np.array([0.0, 1.0, 1.0, 0.0]))


def with_x(value):
    """A table whose row 2 holds the value."""
    x = np.ones((4, 3))
    x[2, 1] = value
    return pt.Table(x, GOOD.y)


def with_y(value):
    return pt.Table(GOOD.x, np.array([0.0, 1.0, 1.0, value]))


def run(parts=PARTS, model=MODEL, prior=PRIOR, method=None, **settings):
    return pt.run(method or pt.methods.sequential(SOLVER), model, prior, parts, **settings)


def run_on(data, model=MODEL):
    """A run whose second client, Bath, holds the data."""
    return run(federate([GOOD, data], names=["Ayr", "Bath"]), model)


def numpyro_model(size, rows=4, **whose):
    """A NumPyro model with a plate of this size is read, in which every member has a variable."""
    numpyro = pytest.importorskip("numpyro")
    laws = numpyro.distributions

    def model(person, y):
        level = numpyro.sample("level", laws.Normal(0, 1))
        with numpyro.plate("people", size):
            ability = numpyro.sample("ability", laws.Normal(level, 1))
        numpyro.sample("y", laws.Normal(ability[person], 1), obs=y)

    return pt.from_numpyro(model, {"person": np.arange(rows) % 2, "y": np.ones(rows)}, **whose)


POISSON, NETWORK = pt.PoissonRegression(), pt.models.NetworkClassifier((3, 2, 2))
PYTREE = pt.MeanFieldGaussian.standard_normal({"slope": jnp.zeros(2), "level": jnp.zeros(1)})
MISTAKES = {
    "no clients": (lambda: federate([]), "There are no clients"),
    "no clients to begin with": (lambda: init(PRIOR, 0), "There are no clients"),
    "an empty client": (lambda: run_on(pt.Table(np.ones((0, 3)), np.ones(0))), "Bath is empty"),
    "other columns": (lambda: run_on(pt.Table(np.ones((4, 2)), GOOD.y)), "Bath has columns of shape"),
    "more x than y": (
        lambda: run_on(pt.Table(np.ones((5, 3)), GOOD.y)),
        "Bath: its arrays have different numbers",
    ),
    "not a table": (lambda: run_on((GOOD.x, GOOD.y)), "Bath: the data are not a Table"),
    "a vector for x": (lambda: run(federate([pt.Table(GOOD.y, GOOD.y)])), "client 0: x has shape (4,)"),
    "two clients of one name": (lambda: federate([GOOD, GOOD], names=["Ayr", "Ayr"]), "unique names"),
    "a weight below zero": (
        lambda: federate([GOOD], weights=[-np.ones(4)]),
        "client 0: give 4 finite, non-negative weights",
    ),
    "NaN in a row": (lambda: run_on(with_x(np.nan)), "Bath: row 2 holds a value that is not finite"),
    "infinity in a row": (lambda: run_on(with_x(np.inf)), "Bath: row 2 holds a value that is not finite"),
    "NaN for a label": (lambda: run_on(with_y(np.nan)), "Bath: row 3 holds a value that is not finite"),
    "a label of 2": (lambda: run_on(with_y(2.0)), "Bath: row 3 has the response 2"),
    "a label of −1": (lambda: run_on(with_y(-1.0), pt.models.ProbitRegression()), "Bath: row 3 has the response -1"),
    "a fraction for a count": (lambda: run_on(with_y(0.5), POISSON), "Bath: row 3 has the response 0.5"),
    "a class too many": (lambda: run_on(with_y(2.0), NETWORK), "Bath: row 3 has the response 2: labels are 0 to 1"),
    "too few inputs": (
        lambda: run_on(GOOD, pt.models.NetworkClassifier((4, 2))),
        "Ayr: x has 3 columns where the",
    ),
    "a prior too wide": (lambda: run(prior=pt.MeanFieldGaussian.standard_normal(4)), "one parameter a column"),
    "a full prior too wide": (lambda: run(prior=pt.FullGaussian.standard_normal(2)), "one parameter a column"),
    "a prior over a pytree": (lambda: run(prior=PYTREE), "needs a family over one vector"),
    "a prior that is not Gaussian": (
        lambda: run(prior=pt.families.Product(a=PRIOR)),
        "needs a Gaussian family, not Product",
    ),
    "an improper prior": (lambda: run(prior=PRIOR**-1), "The prior is improper"),
    "a flat prior": (lambda: run(prior=PRIOR.one()), "The prior is improper"),
    "a prior with NaN": (lambda: run(prior=PRIOR**np.nan), "The prior is improper"),
    "no damping": (lambda: pt.Damped(0), "above 0 and at most 1, not 0"),
    "damping above 1": (lambda: pt.Damped(1.5), "above 0 and at most 1, not 1.5"),
    "damping of NaN": (lambda: pt.Damped(np.nan), "above 0 and at most 1, not nan"),
    "backtracking from 1.5": (lambda: pt.Backtracking(1.5), "above 0 and at most 1, not 1.5"),
    "negative damping": (lambda: pt.methods.synchronous(damping=-1), "above 0 and at most 1, not -1"),
    "a subset too large": (
        lambda: run(method=pt.Method(SOLVER, pt.schedules.RandomSubset(4))),
        "has 1 to 3 members, not 4",
    ),
    "an empty subset": (
        lambda: run(method=pt.Method(SOLVER, pt.schedules.RandomSubset(0))),
        "has 1 to 3 members, not 0",
    ),
    "too few speeds": (lambda: LocalEngine(PARTS, (1, 2)), "Give 3 positive speeds, one per client, not [1.0, 2.0]"),
    "a speed of 0": (lambda: LocalEngine(PARTS, (1, 0, 1)), "Give 3 positive speeds, one per client"),
    "a speed of NaN": (lambda: LocalEngine(PARTS, (1, np.nan, 1)), "Give 3 positive speeds, one per client"),
    "an infinite speed": (lambda: LocalEngine(PARTS, (1, np.inf, 1)), "Give 3 positive speeds, one per client"),
    "no communications": (lambda: run(communications=0), "The budget is empty"),
    "no rounds": (lambda: run(rounds=0), "The budget is empty"),
    "fewer rounds than none": (lambda: run(rounds=-1, communications=5), "The budget is empty"),
    "NaN rounds": (lambda: run(rounds=np.nan), "rounds must be a number, not nan"),
    "a measure without residual order": (
        lambda: pt.methods.sequential(order="fixed", measure=pt.measures.NaturalNorm()),
        "A measure is for residual order, not fixed order",
    ),
    "a measure of answers by name": (lambda: pt.Sequential("residual", "norm"), "use one of partita.measures"),
    "early stopping without patience": (
        lambda: run(rules=pt.Rules(early=pt.early_stopping.EarlyStopping(patience=0))),
        "patience must be a whole number, 1 or more, not 0",
    ),
    "early stopping that is none": (
        lambda: run(rules=pt.Rules(early=True)),
        "give partita.early_stopping.EarlyStopping(…)",
    ),
    "an unknown order": (
        lambda: pt.Sequential("alphabetical"),
        "no order named 'alphabetical': choose one of fixed",
    ),
    "unknown coordinates": (lambda: pt.Gradient(coordinates="polar"), "no system of coordinates named 'polar': choose"),
    "an empty mini-batch": (lambda: pt.Gradient(batch_size=0), "batch size must be a whole number, 1 or more, not 0"),
    "an unknown column": (
        lambda: run(rounds=1).history["elbo"],
        "no column named 'elbo': choose one of step",
    ),
    "an unknown predictive": (
        lambda: run(rounds=1).posterior.predict(GOOD.x, how="mode"),
        "no predictive named 'mode': choose one of closed, monte_carlo",
    ),
    "an unknown prior": (lambda: pt.prior("spike(1)", 3), "no prior named 'spike': choose one of normal, student_t"),
    "an unknown prior of a scale": (
        lambda: pt.prior("normal(0, normal(0, 1))", 3),
        "no prior of a scale named 'normal'",
    ),
    "a prior without numbers": (lambda: pt.prior("normal", 3), "Write the prior as a law with numbers"),
    "a prior with too few numbers": (lambda: pt.prior("student_t(3)", 3), "other numbers than student_t(freedom"),
    "a prior with a text": (lambda: pt.prior("normal(0, sd)", 3), "'sd' is no number"),
    "a prior's scale of 0": (
        lambda: pt.prior("laplace(0, 0)", 3),
        "scale of a prior must be finite and above 0, not 0",
    ),
    "no degrees of freedom": (
        lambda: pt.prior("student_t(-1, 0, 1)", 3),
        "freedom of a prior must be finite and above",
    ),
    "a prior of some coefficients": (lambda: pt.prior("age: normal(0, 1)", ["age", "sex"]), "says nothing of 'sex'"),
    "a prior given twice": (lambda: pt.prior("cauchy(0, 1); cauchy(0, 2)", 3), "all other coefficients is given twice"),
    "a prior of an unknown coefficient": (
        lambda: pt.prior("cauchy(0, 1); age: normal(0, 1)", ["a"]),
        "no coefficient named 'age'",
    ),
    "a prior without support at the start": (
        lambda: run(prior=pt.OutsidePrior(pt.LogDensity(lambda theta, row: jnp.log(theta[0])), PRIOR)),
        "no support where the run starts",
    ),
    "a prior whose density fails": (
        lambda: run(prior=pt.OutsidePrior(pt.LogDensity(lambda theta, row: theta @ jnp.ones(7)), PRIOR)),
        "log density fails where the run starts",
    ),
    "a NumPyro site neither shared nor local": (lambda: numpyro_model(2), "'ability' in the plate 'people' is neither"),
    "a local plate that is not of the rows": (
        lambda: numpyro_model(2, local=["people"]),
        "'people' is not of the size of the rows",
    ),
    "a local plate of rows, of another size": (
        lambda: numpyro_model(3, rows=3, local=["people"]),
        "'people' is not of the size of the rows",
    ),
    "a local variable that two clients need": (
        lambda: numpyro_model(2, local={"people": "person"}).members(
            [{"person": np.arange(2), "y": np.ones(2)}, {"person": np.ones(2, int), "y": np.ones(2)}]
        ),
        "has rows at client 0 and at client 1, which both need its local variables",
    ),
    "a committee whose prior is outside": (
        lambda: run(prior=pt.prior("cauchy(0, 1)", 3), method=pt.methods.bcm_split(SOLVER)),
        "needs a prior in q's family",
    ),
    "a scale to learn of a prior outside": (
        lambda: run(prior=pt.prior("cauchy(0, 1)", 3), method=pt.methods.sequential(SOLVER, learn=["prior_scale"])),
        "has no prior_scale to learn",
    ),
    "a client called prior": (
        lambda: run(federate([GOOD], names=["prior"]), prior=pt.prior("cauchy(0, 1)", 3)),
        "A client is called 'prior'",
    ),
    "a stream that keeps no factor of its prior": (
        lambda: pt.Stream(pt.methods.sequential(), MODEL, pt.prior("cauchy(0, 1)", 3), keep=False),
        "use keep=True",
    ),
    "groups of no level": (
        lambda: pt.models.GroupEffects(pt.LogisticRegression(), ()),
        "There are no effects of groups",
    ),
    "one number for groups in groups": (
        lambda: run(
            federate([pt.data.GroupedTable(*GOOD, np.ones((4, 2)), np.arange(4), np.zeros(4))]),
            pt.models.GroupEffects(pt.LogisticRegression(), (1, 1)),
            pt.FullGaussian.standard_normal(5),
            pt.methods.sequential(pt.solvers.FixedPoint()),
        ),
        "give 2 numbers, the outermost group's first, for each row",
    ),
    "effects that cross": (
        lambda: pt.fit("y ~ (1 | ward) + (1 | doctor)", {"y": [0.0], "ward": ["a"], "doctor": ["b"]}),
        "(1 | ward) and (1 | doctor) are crossed effects",
    ),
    "an effect of groups that stands twice": (
        lambda: pt.fit("y ~ x + (1 | w) + (0 + x | w) + (1 | w)", {"y": [0.0], "x": [1.0], "w": ["a"]}),
        "(1 | w) has the effect Intercept a second time",
    ),
    "Newton without a linear predictor": (
        lambda: run(model=pt.LogDensity(lambda theta, row: -(row.y**2)), method=pt.methods.sequential()),
        "Newton needs a generalised linear model, not LogDensity",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_invalid_input_raises_one_sentence_that_names_the_cause(mistake):
    act, words = MISTAKES[mistake]
    with pytest.raises(pt.InputError) as caught:
        act()
    sentence = str(caught.value)
    assert words in sentence
    assert sentence.endswith(".")
    assert not sentence.endswith("..")
    assert "\n" not in sentence
    assert ". " not in sentence


@pytest.mark.parametrize(("fault", "reason"), [(not_finite, "is not finite"), (improper, "would make the posterior")])
def test_refused_answers_are_recorded_by_client_and_leave_the_posterior_at_the_prior(fault, reason, monkeypatch):
    monkeypatch.setattr(local, "client_update", faulty(fault))
    result = run(PARTS.only(PARTS.names[1]), rounds=5)
    assert result.status is (pt.Status.IMPROPER if fault is improper else pt.Status.DIVERGED)
    assert f"that of client 1 {reason}" in result.message
    [(turn, name, why)] = result.history.refusals
    assert (turn, name, why.startswith(reason)) == (1, "client 1", True)
    start = init(PRIOR, 1)
    assert eqx.tree_equal((result.posterior.q, result.state.factors), (start.posterior, start.factors))


def test_an_answer_with_a_nan_density_is_refused_and_later_finite_ones_are_accepted():
    def density(theta, row):
        return jnp.where(row.y > 5, jnp.log(theta[0]), -((row.y - theta[0]) ** 2) / 2)

    # under the prior some draws of θ are negative; after Bath's answer, about N(2.7, 0.3²), none is
    tables = [pt.Table(np.ones((10, 1)), np.full(10, y)) for y in (9.0, 3.0)]
    parts = federate(tables, names=["Ayr", "Bath"])
    result = run(parts, pt.LogDensity(density), pt.MeanFieldGaussian.standard_normal(1), rounds=3)
    assert result.history.refusals == [(1, "Ayr", "is not finite")]
    assert result.state.versions.tolist() == [2, 3]
    assert result.posterior.q.is_proper()
    assert np.isfinite(result.history["free_energy"]).tolist() == [False] + [True] * 5
