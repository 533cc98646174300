"""NumPyro models' plates that belong to one client: integrals as others compute them, runs, and what stays at home."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Predictive
from scipy import integrate, special, stats

import partita as pt
from partita.errors import DataError, SettingsError
from partita.models.integral import log_integral
from partita.server.membership import join, retire
from support.numpyro_models import LOCAL, SIZE, dealt
from support.problems import SCHEDULES, assert_product

QUIET = pt.Monitor(progress=False)
SOLVER = pt.solvers.ModeFixedPoint()
SEQUENTIAL = pt.methods.sequential(SOLVER)
EXAMPLE = "frailties"
DRAWS = 64
"""Few: how exact an average is does not matter to whether federated runs end where pooled ones do."""


@functools.cache
def read(name, draws=DRAWS):
    function, told, rows = LOCAL[name]
    return pt.from_numpyro(function, rows, **told, expectation=pt.expectations.CommonDraws(draws))


@functools.cache
def clients(name):
    return pt.federate(dealt(name, read(name)))


@functools.cache
def everything(name):
    return dealt(name, read(name), 1)[0]


def of_people(theta, rows):
    """Log densities of people by SciPy: their ability integrated out."""
    spread, difficulty = np.exp(theta[0]), theta[1:]

    def person(item, y):
        def density(ability):
            odds = ability - difficulty[item]
            return stats.norm.pdf(ability, 0, spread) * np.prod(special.expit(np.where(y, odds, -odds)))

        return np.log(integrate.quad(density, -9, 9, epsabs=0, epsrel=1e-10)[0])

    return [person(rows["item"][rows["person"] == k], rows["y"][rows["person"] == k]) for k in range(12)]


def of_groups(theta, rows):
    """The same of lines, whose intercept and slope are Gaussian: in closed form."""
    mean, tau = theta[:2], np.exp(theta[2:])

    def group(x, y):
        design = np.column_stack([np.ones(len(x)), x])
        covariance = design @ np.diag(tau**2) @ design.T + 0.25 * np.eye(len(x))
        return stats.multivariate_normal(design @ mean, covariance).logpdf(y)

    return [group(rows["x"][rows["group"] == k], rows["y"][rows["group"] == k]) for k in range(12)]


def of_rows(theta, rows):
    """The same of frailties: a gamma mixture of Poissons is negative binomial."""
    shape = np.exp(theta[0])
    return stats.nbinom(shape, (rate := np.exp(rows["x"])) / (1 + rate)).logpmf(rows["y"])


KNOWN = {
    "abilities": (of_people, [-0.3, 0.2, 0.5, 1.0], 1e-8),
    "lines": (of_groups, [0.2, 0.9, -0.4, -1.0], 1e-10),
    # a tail like exp(1.8 u)
    "frailties": (of_rows, [0.6], 3e-7),
}


@pytest.mark.parametrize(
    "name", ["abilities", *(pytest.param(name, marks=pytest.mark.slow) for name in list(KNOWN)[1:])]
)
def test_local_variables_are_integrated_out(name):
    known, theta, tolerance = KNOWN[name]
    found = jax.jit(jax.vmap(read(name).log_density, in_axes=(None, 0)))(jnp.array(theta), everything(name))
    np.testing.assert_allclose(found, known(np.array(theta), LOCAL[name][2]), atol=tolerance)


def normal(u, mean):
    return -((u - mean) ** 2) / 2 - np.log(2 * np.pi) / 2


DENSITIES = {
    "flat at a kink": (lambda u: -abs(u) - np.log(2), 0.0),
    "a kink and a row": (
        lambda u: -abs(u) - np.log(2) + jax.nn.log_sigmoid(u - 1),
        np.log(integrate.quad(lambda u: np.exp(-abs(u)) / 2 * special.expit(u - 1), -60, 60, points=[0])[0]),
    ),
    "flat": (lambda u: -(u**4), np.log(2 * special.gamma(1.25))),
    "a power's tails": (lambda u: -jnp.log1p(u**2) - np.log(np.pi), 0.0),
    "two modes": (lambda u: jnp.logaddexp(normal(u, -1.5), normal(u, 1.5)) - np.log(2), 0.0),
}
"""Logarithms of functions of one variable, and of their integrals."""


@pytest.mark.parametrize("name", DENSITIES)
def test_integrals_of_what_is_no_gaussian(name):
    density, known = DENSITIES[name]
    found = jax.jit(lambda theta: log_integral(lambda _, u: density(u[0]), theta, 1))(jnp.zeros(1))
    np.testing.assert_allclose(found, known, atol=3e-4)


@pytest.mark.parametrize("size", [1, 2])
def test_an_integral_that_is_not_accurate_is_no_number(size):
    """Of modes that are far apart, and of kinks in two variables."""

    def density(apart, u):
        modes = jnp.logaddexp(normal(u[0], -apart[0]), normal(u[0], apart[0])) - np.log(2)
        return modes if size == 1 else -jnp.sum(jnp.abs(u))

    found = jax.jit(jax.vmap(lambda apart: log_integral(density, apart, size)))(jnp.arange(3.0, 12.0)[:, None])
    known = 0.0 if size == 1 else 2 * np.log(2)
    assert np.isnan(found[3:]).all()
    np.testing.assert_allclose(found[~np.isnan(found)], known, atol=1e-3)


def laplace(person, x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("people", 3):
        z = numpyro.sample("z", dist.Laplace(0, 1))
    numpyro.sample("y", dist.Normal(b + z[person] * x, 1.0), obs=y)


def test_members_whose_variables_do_not_matter():
    rows = {"person": np.arange(6) // 2, "x": np.array([0.0, 0, 0, 0, 1, 1]), "y": np.linspace(-1, 1, 6)}
    model = pt.from_numpyro(laplace, rows, local={"people": "person"})
    found = jax.jit(jax.vmap(model.log_density, in_axes=(None, 0)))(jnp.array([0.3]), model.members([rows])[0])
    known = stats.norm.logpdf(rows["y"], 0.3).reshape(3, 2).sum(axis=1)[:2]
    np.testing.assert_allclose(found[:2], known, atol=3e-4)


def two_sites(person, item, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("people", 4):
        z = numpyro.sample("z", dist.Normal(0, 1))
    with numpyro.plate("pair", 2, dim=-2), numpyro.plate("people", 4, dim=-1):
        a = numpyro.sample("a", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(b + z[person] + a[item, person], 1.0), obs=y)


@pytest.mark.slow
def test_sites_keep_their_axes_whatever_their_names():
    rows = {"person": np.arange(8) % 4, "item": np.arange(8) // 4, "y": np.linspace(-9, 9, 8)}
    model = pt.from_numpyro(two_sites, rows, shared=["pair"], local={"people": "person"})
    found = model.values_of_members(np.zeros((3, 1)), model.members([rows])[0])
    assert {name: value.shape for name, value in found.items()} == {"z": (3, 4), "a": (3, 2, 4)}


@pytest.mark.slow
def test_derivatives_are_those_of_the_integral():
    """Of nodes that follow θ, though they stay where they are when the sum is differentiated."""
    theta, ahead = jnp.array([0.6]), 1e-3
    row = {name: values[0] for name, values in LOCAL["frailties"][2].items()}
    density = jax.jit(lambda theta: read("frailties").log_density(theta, row))
    slope = (density(theta + ahead) - density(theta - ahead)) / (2 * ahead)
    curvature = (density(theta + ahead) - 2 * density(theta) + density(theta - ahead)) / ahead**2
    # differences err by the third derivative times 1e-6 / 6
    np.testing.assert_allclose(jax.jit(jax.grad(density))(theta)[0], slope, atol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.hessian(density))(theta)[0, 0], curvature, atol=1e-4)


def run(name, method=SEQUENTIAL, parts=None, **settings):
    model = read(name)
    given = clients(name) if parts is None and "engine" not in settings else parts
    return pt.run(method, model, model.prior(), given, monitor=QUIET, **{"tolerance": 1e-12} | settings)


@functools.cache
def reference(name):
    return run(name)


def assert_same(result, other, rtol=1e-6):
    # 1e-6 of a standard deviation: a run ends within 1e-12 nats, which are 1.4e-6 of them a client
    sd = np.asarray(other.posterior.sd)
    np.testing.assert_allclose(result.posterior.mean / sd, other.posterior.mean / sd, atol=5 * rtol)
    np.testing.assert_allclose(result.posterior.sd, sd, rtol=5 * rtol)
    np.testing.assert_allclose(result.free_energy, other.free_energy, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_federated_is_pooled(name):
    pooled = run(name, parts=pt.federate([everything(name)]))
    assert reference(name).status is pt.Status.CONVERGED
    assert_same(reference(name), pooled)
    # what clients report is of the posterior that they were sent: they add up to the free energy of it
    assert_product(reference(name).state)


METHODS = {"synchronous": pt.Adaptive(), "asynchronous": pt.Adaptive()}


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_finds_it(schedule):
    chosen, speeds = SCHEDULES[schedule]
    method = pt.Method(SOLVER, chosen, METHODS.get(schedule, pt.Damped(0.5)))
    result = run(EXAMPLE, method, engine=pt.LocalEngine(clients(EXAMPLE), speeds), rounds=300)
    assert_same(result, reference(EXAMPLE), rtol=1e-5)
    assert_product(result.state)


@pytest.mark.slow
def test_clients_leave_and_come_back():
    parts, aggregation = clients(EXAMPLE), SEQUENTIAL.aggregation
    rest = parts.without("client 2")
    gone = retire(reference(EXAMPLE).state, "client 2", aggregation)
    assert_same(run(EXAMPLE, state=gone, parts=rest), run(EXAMPLE, parts=rest))
    assert_same(run(EXAMPLE, state=join(gone, "client 2", aggregation)), reference(EXAMPLE))


@pytest.mark.slow
def test_bounds_judge_factors_as_those_of_any_client():
    result = run(EXAMPLE, rules=pt.Rules(admission=pt.Admission(deficit=10.0, dominance=1e6)))
    assert_same(result, reference(EXAMPLE))
    assert not result.history.refusals


@pytest.mark.slow
@pytest.mark.parametrize("store", [pt.Checkpoint, pt.Ledger])
def test_a_run_goes_on_from_a_file_to_the_bit(store, tmp_path):
    whole, path = run(EXAMPLE, rounds=3, tolerance=None), tmp_path / "run"
    run(EXAMPLE, rounds=1, tolerance=None, store=store(path))
    resumed = run(EXAMPLE, rounds=3, tolerance=None, store=store(path))
    assert np.array_equal(resumed.posterior.q.mean, whole.posterior.q.mean)


@pytest.mark.slow
def test_members_have_their_posterior_given_rows():
    """Draws beside quadrature, of people whose ability is the only thing that is drawn."""
    model, theta = read("abilities"), np.array([-0.3, 0.2, 0.5, 1.0])
    drawn = model.values_of_members(np.tile(theta, (500, 1)), everything("abilities"))["ability"]
    assert drawn.shape == (500, 12)
    at, rows = np.linspace(-6, 6, 2001), LOCAL["abilities"][2]
    for k in (0, 5):
        own = rows["person"] == k
        odds = at[:, None] - theta[1:][rows["item"][own]]
        log = stats.norm.logpdf(at, 0, np.exp(-0.3))
        log += special.log_expit(np.where(rows["y"][own], odds, -odds)).sum(axis=1)
        masses = np.exp(log - special.logsumexp(log))
        mean = masses @ at
        sd = np.sqrt(masses @ (at - mean) ** 2)
        # four standard errors of 500 draws
        np.testing.assert_allclose(drawn[:, k].mean(), mean, atol=4 * sd / np.sqrt(500))
        np.testing.assert_allclose(drawn[:, k].std(), sd, rtol=4 / np.sqrt(1000))


@pytest.mark.slow
def test_a_client_predicts_for_its_members_and_draws_new_ones():
    function, _, rows = LOCAL["abilities"]
    posterior, asked = reference("abilities").posterior, {"person": rows["person"], "item": rows["item"]}
    theta = posterior.sample(400)
    shared = read("abilities").values(theta)
    own = shared | read("abilities").values_of_members(theta, everything("abilities"))
    known = np.asarray(Predictive(function, own)(jax.random.key(0), **asked)["y"]).mean(axis=0)
    new = np.asarray(Predictive(function, shared)(jax.random.key(0), **asked)["y"]).mean(axis=0)
    share = np.array([rows["y"][rows["person"] == k].mean() for k in range(12)])[rows["person"]]
    # people who were often right will be, and of new ones all are the same
    assert np.corrcoef(known - new, share)[0, 1] > 0.8
    assert max(np.ptp(new[rows["item"] == k]) for k in range(3)) < 0.2


@pytest.mark.slow
def test_no_message_ledger_history_or_log_has_a_local_variable(tmp_path, caplog):
    from partita.engines.endpoint import ClientEndpoint
    from partita.engines.remote import RemoteEngine
    from support.weather import FaultyLink

    model, parts = read("abilities"), clients("abilities")
    recipe, prior = SEQUENTIAL.recipe(model), model.prior()
    ends = {
        name: ClientEndpoint(name, recipe, prior.base, shard)
        for name, shard in zip(parts.names, parts.shards, strict=True)
    }
    link = FaultyLink(ends)
    engine = RemoteEngine(link, dict(zip(parts.names, parts.sizes, strict=True)))
    with caplog.at_level("DEBUG"):
        result = run("abilities", engine=engine, store=pt.Ledger(tmp_path / "ledger"), rules=pt.Rules(deadline=99.0))
    assert_same(result, reference("abilities"))
    mean, members = result.posterior.mean, parts.shards[0].data
    told = [np.asarray(jax.vmap(model.log_density, in_axes=(None, 0))(mean, members))]
    told += [np.ravel(value) for value in model.values_of_members(mean[None], members).values()]
    kept = [path.read_bytes() for path in tmp_path.iterdir()] + link.sent
    said = json.dumps(result.history.rows, default=str) + caplog.text
    sent = np.asarray(result.state.factors[0].natural.precision)[0, 0]
    assert any(np.float64(sent).tobytes() in text for text in kept)
    for number in np.concatenate(told):
        assert not any(np.float64(number).tobytes() in text for text in kept)
        assert f"{number:.6g}" not in said
    # and a message of one member is as long as that of four
    few = pt.federate([jax.tree.map(lambda leaf: leaf[:1], dealt("abilities", model)[0])])
    sizes = []
    for shard in (parts.shards[0], few.shards[0]):
        link = FaultyLink({"client 0": ClientEndpoint("client 0", recipe, prior.base, shard)})
        run("abilities", engine=RemoteEngine(link, {"client 0": 4}), rounds=1, rules=pt.Rules(deadline=99.0))
        sizes.append([len(message) for message in link.sent])
    assert np.allclose(sizes[0][:4], sizes[1][:4], atol=64)


def paired(person, other, y):
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("people", 12):
        ability = numpyro.sample("ability", dist.Normal(0, spread))
    numpyro.sample("y", dist.Bernoulli(logits=ability[person] - ability[other]), obs=y)


def shared_of_local(person, other, y):
    with numpyro.plate("people", 12):
        ability = numpyro.sample("ability", dist.Normal(0, 1))
    b = numpyro.sample("b", dist.Normal(ability.mean(), 1.0))
    numpyro.sample("y", dist.Bernoulli(logits=ability[person] + b), obs=y)


def in_order(person, other, y):
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("people", 3):
        ability = numpyro.sample("ability", dist.Normal(jnp.arange(3.0)[: 3 if len(person) > 1 else 1], spread))
    numpyro.sample("y", dist.Bernoulli(logits=ability[person]), obs=y)


def seen_in_plate(person, other, y):
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("people", 12):
        ability = numpyro.sample("ability", dist.Normal(0, spread))
        numpyro.sample("known", dist.Normal(ability, 1.0), obs=0.0)
    numpyro.sample("y", dist.Bernoulli(logits=ability[person]), obs=y)


def kinks(person, other, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("people", 3):
        z = numpyro.sample("z", dist.Laplace(0, 1).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(b + 0 * z[person].sum(axis=1), 1.0), obs=y)


REFUSED = {
    "kinks in two variables": (kinks, "integral over the local variables of 'people' is not accurate: they have"),
    "a row of two members": (paired, "depend on each other or on other members' local variables: let"),
    "a shared site of local ones": (shared_of_local, "depend on rows or on local variables, which the server lacks"),
    "members that differ": (in_order, "local variables of the NumPyro model depend on other members"),
    "an observed site of members": (seen_in_plate, "'known' is in the plate 'people', whose members rows name by"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_local_variables_may_not_do(case):
    model, sentence = REFUSED[case]
    rows = {"person": np.arange(9) % 3, "other": np.arange(9) // 3, "y": np.arange(9) % 2}
    with pytest.raises(SettingsError, match=sentence) as caught:
        pt.from_numpyro(model, rows, local={"people": "person"})
    assert str(caught.value).count(". ") == 0


def test_a_member_has_rows_at_one_client():
    model, rows = read("abilities"), LOCAL["abilities"][2]
    halves = [{name: values[k::2] for name, values in rows.items()} for k in range(2)]
    assert [len(each.counts) for each in model.members(halves)] == [6, 6]
    thirds = [{name: values[k::5] for name, values in rows.items()} for k in range(5)]
    with pytest.raises(DataError, match="of the plate 'people' has rows at client 0 and at client 1, which"):
        model.members(thirds)
    with pytest.raises(DataError, match="client 0 lack a column 'person'"):
        model.members([{"y": rows["y"]}])
    with pytest.raises(DataError, match="Give a list with the rows of each client"):
        model.members(rows)
    with pytest.raises(DataError, match="not those of the NumPyro model"):
        model.members([{"person": rows["person"]}])
    with pytest.raises(SettingsError, match=r"federate model\.members"):
        pt.run(SEQUENTIAL, model, model.prior(), pt.federate([rows]), monitor=QUIET)
    with pytest.raises(SettingsError, match="Every row is a member"):
        read("frailties").members([LOCAL["frailties"][2]])


def test_members_differ_in_their_numbers_of_rows():
    """What fills them up does not count."""
    model, rows = read("abilities"), LOCAL["abilities"][2]
    kept = np.arange(SIZE) != 2
    some = model.members([{name: values[kept] for name, values in rows.items()}])[0]
    assert some.counts.sum(axis=1).tolist() == [5, 5, 4, *[5] * 9]
    theta = np.array([-0.3, 0.2, 0.5, 1.0])
    found = jax.jit(jax.vmap(model.log_density, in_axes=(None, 0)))(theta, some)
    known = of_people(theta, {name: values[kept] for name, values in rows.items()})
    np.testing.assert_allclose(found, known, atol=1e-8)


@pytest.mark.slow
def test_the_size_of_a_local_plate_does_not_matter():
    """NumPyro would weight members of a plate whose size is another, as if they stood for all of them."""
    function, told, rows = LOCAL["abilities"]
    model = pt.from_numpyro(function, {name: values[:8] for name, values in rows.items()}, **told)
    theta = np.array([-0.3, 0.2, 0.5, 1.0])
    some = {name: values[rows["person"] < 7] for name, values in rows.items()}
    found = jax.jit(jax.vmap(model.log_density, in_axes=(None, 0)))(theta, model.members([some])[0])
    np.testing.assert_allclose(found, of_people(theta, rows)[:7], atol=1e-8)
