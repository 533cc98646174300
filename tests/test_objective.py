import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as st
from scipy.integrate import quad

from partita import LinearRegression, MeanFieldGaussian, Table
from partita.data import federate
from partita.families.factor import Factor
from partita.local.context import Cavity, NoDeletion, Prior
from partita.local.objective import Problem, local_free_energy, log_partition

KEY = jax.random.key(0)
MEAN, SD = np.array([0.5, -1.0]), np.array([0.4, 0.8])
Q = MeanFieldGaussian.from_mean_sd(MEAN, SD)
PRIOR = MeanFieldGaussian.standard_normal(2, 2.0)
X = np.array([[1.0, 0.3], [0.5, -1.0], [2.0, 0.0]])
Y = np.array([0.2, 1.5, -0.3])
SHARD = federate([Table(X, Y)], weights=[np.array([1.0, 2.0, 0.5])]).shards[0]
T = Factor(MeanFieldGaussian(jnp.array([1.0, -2.0]), jnp.array([3.0, 0.5])), jnp.asarray(0.7))
U = Factor(MeanFieldGaussian(jnp.array([0.2, 0.1]), jnp.array([-4.0, 1.0])), jnp.asarray(-0.4))


def same(first, second, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), first, second)


def log_value(factor, theta):
    """log t(θ), written out."""
    shift, precision = np.asarray(factor.natural.precision_mean), np.asarray(factor.natural.precision)
    return theta @ shift - theta**2 @ precision / 2 + float(factor.log_scale)


def problem(context, weight=1.0):
    one = jnp.asarray(1.0)
    return Problem(LinearRegression(0.5), SHARD, context, jnp.asarray(weight), Q, one)


def numpy_terms(factor):
    """ell, E_q[log context] and H[q] of the problem above, in closed form."""
    mean, variance = X @ MEAN, X**2 @ SD**2
    rows = st.norm.logpdf(Y, mean, 0.5) - variance / (2 * 0.25)
    shift, precision = np.asarray(factor.natural.precision_mean), np.asarray(factor.natural.precision)
    expected = MEAN @ shift - (MEAN**2 + SD**2) @ precision / 2 + float(factor.log_scale)
    entropy = st.norm(MEAN, SD).entropy().sum()
    return np.asarray(SHARD.weights) @ rows, expected, entropy


def test_factors_multiply_as_functions_do():
    for theta in (np.array([0.3, -0.8]), np.array([-2.0, 1.0])):
        t, u = log_value(T, theta), log_value(U, theta)
        for factor, expected in [(T * U, t + u), (T / U, t - u), (T**0.3, 0.3 * t), (T * Factor.one(Q), t)]:
            np.testing.assert_allclose(log_value(factor, theta), expected, rtol=1e-12)
        np.testing.assert_allclose(log_value(Factor.of(Q), theta), st.norm.logpdf(theta, MEAN, SD).sum(), rtol=1e-12)


def test_expected_log_is_the_integral():
    expected = numpy_terms(U)[1]
    np.testing.assert_allclose(U.expected_log(Q), expected, rtol=1e-12)
    np.testing.assert_allclose(Factor.of(Q).expected_log(Q), -Q.entropy(), rtol=1e-12)


@pytest.mark.parametrize(
    ("context", "expected"),
    [(Cavity(), Factor.of(Q) / T), (NoDeletion(), Factor.of(Q)), (Prior(), Factor.of(PRIOR))],
    ids=["cavity", "posterior", "prior"],
)
def test_contexts_are_those_of_the_table(context, expected):
    """`eq:vfe`, `eq:vcl_objective` and global VI; each with weight 1."""
    share = jnp.asarray(0.3)
    same(context(PRIOR, Q, T, share), expected, rtol=1e-15)
    assert context.weight(share) == 1


def test_a_cavity_times_its_factor_is_the_posterior():
    same(Cavity()(PRIOR, Q, U, jnp.asarray(0.3)) * U, Factor.of(Q), rtol=1e-14)


@pytest.mark.parametrize("context", [Factor.of(PRIOR), T, U], ids=["prior", "a factor", "an improper factor"])
@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_the_local_free_energy_is_that_of_numpy(context, weight):
    """w·ell(q) + E_q[log context] + H[q]; no normaliser of the context is asked for."""
    ell, expected, entropy = numpy_terms(context)
    np.testing.assert_allclose(
        problem(context, weight).free_energy(Q, KEY), weight * ell + expected + entropy, rtol=1e-12
    )


def test_an_improper_context_has_no_normaliser_but_a_free_energy():
    assert not np.isfinite(U.natural.log_normaliser())
    assert np.isfinite(problem(U).free_energy(Q, KEY))
    gradient = jax.grad(lambda s: problem(U).free_energy(Q.with_standard(s), KEY))(Q.standard())
    assert np.isfinite(jnp.concatenate(gradient)).all()


def test_with_a_normalised_context_it_is_ell_minus_kl():
    ell = problem(Factor.of(PRIOR)).ell(Q, KEY)
    np.testing.assert_allclose(problem(Factor.of(PRIOR)).free_energy(Q, KEY), ell - Q.kl(PRIOR), rtol=1e-12)


def test_the_likelihood_factor_of_one_gaussian_column_is_the_likelihood():
    """ell is linear in the mean parameters where columns do not interact, so ∇_μ ell is the likelihood itself."""
    single = federate([Table(X[:, :1], Y)]).shards[0]
    q = MeanFieldGaussian.from_mean_sd(MEAN[:1], SD[:1])
    one = jnp.asarray(1.0)
    factor = Problem(LinearRegression(0.5), single, Factor.of(q), one, q, one).likelihood_factor(q, KEY)
    np.testing.assert_allclose(factor.precision, X[:, :1].T @ X[:, 0] / 0.25, rtol=1e-12)
    np.testing.assert_allclose(factor.precision_mean, X[:, :1].T @ Y / 0.25, rtol=1e-12)


def test_the_trust_region_holds_only_where_the_context_is_improper():
    near, far = Q, MeanFieldGaussian.from_mean_sd(MEAN + 2, SD)
    assert far.kl(Q) > Q.size() > near.kl(Q)
    assert [bool(problem(U).within(q)) for q in (near, far)] == [True, False]
    assert [bool(problem(T).within(q)) for q in (near, far)] == [True, True]


def test_the_partition_function_is_the_integral():
    """`eq:approx`: Z_q = ∫ p(θ) Π t_m(θ) dθ, by quadrature in each of two independent dimensions."""
    each = []
    for i in range(2):

        def integrand(theta, i=i):
            shift = float(T.natural.precision_mean[i] + U.natural.precision_mean[i])
            precision = float(T.natural.precision[i] + U.natural.precision[i]) + 5 * (i == 0)
            return st.norm.pdf(theta, 0, 2) * np.exp(shift * theta - precision * theta**2 / 2)

        each.append(np.log(quad(integrand, -40, 40, points=[0.0])[0]))
    tame = Factor(MeanFieldGaussian(jnp.zeros(2), jnp.array([5.0, 0.0])), jnp.asarray(0.0))
    np.testing.assert_allclose(log_partition(PRIOR, [T, U, tame]), sum(each) + 0.7 - 0.4, rtol=1e-8)


def test_local_free_energies_add_up_to_the_global_one():
    """`prop:local-fe-global-fe`: Σ F_m + log Z_q = Σ ell_m − KL(q ‖ p), where q = p · Π t_m / Z_q."""
    factors = [T, Factor(Q / PRIOR / T.natural, jnp.asarray(2.0))]
    model = LinearRegression(0.5)
    parts = sum(local_free_energy(model, SHARD, Q, factor, KEY) for factor in factors)
    whole = 2 * model.ell(Q, SHARD.data, SHARD.weights, KEY) - Q.kl(PRIOR)
    np.testing.assert_allclose(parts + log_partition(PRIOR, factors), whole, rtol=1e-12)
