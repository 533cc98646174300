import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as st

from partita import FullGaussian, InputError, MeanFieldGaussian
from partita.checks import check_family
from partita.families import Family

MEAN = np.array([0.3, -1.0, 2.0])
SD = np.array([0.5, 1.2, 2.0])
COVARIANCE = np.array([[1.0, 0.3, 0.1], [0.3, 0.8, -0.2], [0.1, -0.2, 1.5]])
THETA = jnp.array([0.1, 0.2, -0.3])
X = jnp.array([[1.0, 0.5, -0.2], [0.3, -1.0, 0.7]])

MEAN_FIELD = MeanFieldGaussian.from_mean_sd(MEAN, SD)
FULL = FullGaussian.from_mean_covariance(MEAN, COVARIANCE)


def tree(vector):
    return {"a": jnp.asarray(vector[0]), "b": jnp.asarray(vector[1:])}


def wide(q):
    """Another member of the same kind as q."""
    return type(q).standard_normal(q.mean, scale=1.5)


MEMBERS = {
    "mean-field": MEAN_FIELD,
    "full": FULL,
    "mean-field over a tree": MeanFieldGaussian.from_mean_sd(tree(MEAN), tree(SD)),
    "full over a tree": FullGaussian.from_mean_covariance(tree(MEAN), COVARIANCE),
}
every_member = pytest.mark.parametrize("q", MEMBERS.values(), ids=MEMBERS.keys())
both = pytest.mark.parametrize("q", [MEAN_FIELD, FULL], ids=["mean-field", "full"])


@every_member
def test_contract(q):
    check_family(q, wide(q))


@both
def test_density_entropy_and_interval_are_scipys(q):
    covariance = np.diag(SD**2) if q is MEAN_FIELD else COVARIANCE
    reference = st.multivariate_normal(MEAN, covariance)
    # Closed forms on both sides: they differ by rounding only.
    np.testing.assert_allclose(q.log_prob(THETA), reference.logpdf(THETA), rtol=1e-12)
    np.testing.assert_allclose(q.entropy(), reference.entropy(), rtol=1e-12)
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(q.interval(0.9), st.norm.interval(0.9, MEAN, sd), rtol=1e-12)
    np.testing.assert_allclose(q.moments(), (MEAN, sd), rtol=1e-12)


def test_a_tree_and_a_vector_are_the_same_density():
    for vector, over_tree in [("mean-field", "mean-field over a tree"), ("full", "full over a tree")]:
        first, second = MEMBERS[vector], MEMBERS[over_tree]
        np.testing.assert_allclose(first.log_prob(THETA), second.log_prob(tree(THETA)), rtol=1e-12)
        np.testing.assert_allclose(first.kl(wide(first)), second.kl(wide(second)), rtol=1e-12)


@both
def test_kl_is_the_closed_form(q):
    covariance = np.diag(SD**2) if q is MEAN_FIELD else COVARIANCE
    other_mean, other_sd = np.array([1.0, 0.0, -1.0]), np.array([0.7, 2.0, 1.1])
    if q is MEAN_FIELD:
        other = MeanFieldGaussian.from_mean_sd(other_mean, other_sd)
        other_covariance = np.diag(other_sd**2)
    else:
        other_covariance = np.outer(other_sd, other_sd) * (0.4 + 0.6 * np.eye(3))
        other = FullGaussian.from_mean_covariance(other_mean, other_covariance)
    gap = other_mean - MEAN
    inverse = np.linalg.inv(other_covariance)
    log_ratio = np.linalg.slogdet(other_covariance)[1] - np.linalg.slogdet(covariance)[1]
    expected = (np.trace(inverse @ covariance) + gap @ inverse @ gap - 3 + log_ratio) / 2
    np.testing.assert_allclose(q.kl(other), expected, rtol=1e-12)


@both
def test_projection_has_the_moments_of_the_linear_predictor(q):
    covariance = np.diag(SD**2) if q is MEAN_FIELD else COVARIANCE
    mean, variance = q.project(X)
    np.testing.assert_allclose(mean, X @ MEAN, rtol=1e-12)
    np.testing.assert_allclose(variance, np.diag(X @ covariance @ X.T), rtol=1e-12)


@pytest.mark.parametrize("kind", ["mean-field over a tree", "full over a tree"])
def test_projection_needs_a_vector(kind):
    with pytest.raises(InputError, match="vector"):
        MEMBERS[kind].project(X)


@every_member
def test_an_improper_factor_multiplies_divides_powers_and_prints(q):
    factor = q / wide(q) ** 20  # a negative precision: 1/SD² < 20/1.5²
    assert not factor.is_proper()
    assert "improper" in str(factor)
    assert "improper" not in str(q)
    assert not np.isfinite(factor.log_normaliser())
    back = factor * wide(q) ** 15 * wide(q) ** 5
    assert back.is_proper()
    # Sums of numbers of size 10.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-13), back, q)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, -0.5 * b), factor**-0.5, factor)
    assert "non-finite" in str(q ** float("nan"))


@pytest.mark.parametrize(
    "other",
    [
        MEMBERS["full"],
        MEMBERS["mean-field over a tree"],
        MeanFieldGaussian.standard_normal(2),
        MeanFieldGaussian.standard_normal(1),  # would broadcast
    ],
    ids=["another family", "another tree", "fewer parameters", "one parameter"],
)
def test_members_of_different_kind_cannot_be_combined(other):
    for combine in (lambda a, b: a * b, lambda a, b: a / b):
        for pair in [(MEAN_FIELD, other), (other, MEAN_FIELD)]:
            with pytest.raises(InputError, match="cannot be combined"):
                combine(*pair)


def test_full_members_over_different_trees_cannot_be_combined():
    """Their leaves have the same shapes; only how the vector is cut into θ differs."""
    with pytest.raises(InputError, match="different shape"):
        MEMBERS["full"] * MEMBERS["full over a tree"]


@both
def test_natural_gradient_solves_the_fisher_system(q):
    """`prop:fixed-point-equations`: ∇_μ f = Fisher⁻¹ ∇_η f."""

    def function(r):
        mean, variance = r.project(X)
        return jnp.sum(jnp.cos(mean) * jnp.exp(-variance / 3))

    flat, unravel = jax.flatten_util.ravel_pytree(q)
    gradient = jax.jit(jax.grad(lambda eta: function(unravel(eta))))(flat)
    # The precision of the full family is symmetric, so its Fisher matrix has a null space; the pseudo-inverse stays
    # out of it. The condition number is about 1e3, far from the tolerance.
    expected = np.linalg.pinv(jax.jit(lambda r: r.fisher())(q), rcond=1e-12) @ gradient
    closed = jax.jit(lambda r: r.natural_gradient(function))(q)
    np.testing.assert_allclose(jax.flatten_util.ravel_pytree(closed)[0], expected, atol=1e-10)
    if q is MEAN_FIELD:
        standard = jax.grad(lambda s: function(q.with_standard(s)))(q.standard())
        default = Family.pull_back(q, standard)
        np.testing.assert_allclose(jax.flatten_util.ravel_pytree(default)[0], expected, atol=1e-10)


@both
def test_a_batch_of_members_is_mapped_over(q):
    key = jax.random.key(0)

    def numbers(r):
        return (
            r.kl(wide(q)),
            r.entropy(),
            r.log_prob(THETA),
            r.is_proper(),
            r.sample(key, (2,)),
            (r / wide(q)).precision,
        )

    members = [q**power for power in (0.5, 1.0, 2.0)]
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    together = jax.jit(jax.vmap(numbers))(batch)
    for i, member in enumerate(members):
        alone = numbers(member)
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-12), together, alone)


@both
def test_single_precision_stays_single(q):
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), q)
    other = wide(single)
    theta = THETA.astype(jnp.float32)

    def everything(r):
        return (
            r * other,
            (r / other) ** 0.3,
            r ** jnp.asarray(0.3, jnp.float32),
            r.natural_gradient(lambda s: -s.kl(other)),
            r.with_mean_parameters(r.mean_parameters()),
            r.with_unconstrained(r.unconstrained()),
            [r.kl(other), r.entropy(), r.log_prob(theta), r.cross(other), r.log_normaliser()],
            r.sample(jax.random.key(0), (2,)),
            r.moments(),
        )

    types = {str(leaf.dtype) for leaf in jax.tree.leaves(jax.eval_shape(everything, single))}
    assert types == {"float32"}
