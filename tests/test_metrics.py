import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics as sk
from scipy.integrate import quad
from scipy.stats import norm

import partita as pt
from partita import InputError, metrics

GENERATOR = np.random.default_rng(0)
CLASSES = GENERATOR.integers(0, 3, 50)
MATRIX = GENERATOR.dirichlet([1.0, 1.0, 1.0], 50)
BINARY = (CLASSES == 1).astype(int)
VECTOR = GENERATOR.uniform(size=50)

both_shapes = pytest.mark.parametrize(
    ("probabilities", "y"), [(MATRIX, CLASSES), (VECTOR, BINARY)], ids=["matrix", "vector"]
)


@both_shapes
def test_scores_are_those_of_scikit_learn(probabilities, y):
    matrix = probabilities if probabilities.ndim == 2 else np.stack([1 - probabilities, probabilities], axis=1)
    assert metrics.error(probabilities, y) == pytest.approx(1 - sk.accuracy_score(y, matrix.argmax(1)))
    assert metrics.negative_log_likelihood(probabilities, y) == pytest.approx(sk.log_loss(y, matrix), rel=1e-12)
    scaled = sk.brier_score_loss(y, matrix, scale_by_half=False, labels=list(range(matrix.shape[1])))
    assert metrics.brier(probabilities, y) == pytest.approx(scaled, rel=1e-12)


def test_a_label_with_probability_zero_has_infinite_loss():
    assert metrics.negative_log_likelihood(np.array([0.0, 0.5]), np.array([1, 1])) == np.inf


def test_calibration_error_by_hand():
    # Confidences 0.9, 0.9, 0.6, 0.6, 0.8; in bins of a tenth the two at 0.9 have one right: |0.5 − 0.9|; the two at
    # 0.6 both right: |1 − 0.6|; the one at 0.8 wrong: |0 − 0.8|.
    p = np.array([0.9, 0.1, 0.6, 0.4, 0.2])
    y = np.array([1, 1, 1, 0, 1])
    expected = (2 * 0.4 + 2 * 0.4 + 1 * 0.8) / 5
    assert metrics.calibration_error(p, y, bins=10) == pytest.approx(expected)
    # A confidence of 1 belongs to the last bin: one of two right at a mean confidence of 0.975.
    assert metrics.calibration_error(np.array([1.0, 0.95]), np.array([0, 1]), bins=10) == pytest.approx(0.475)
    # In one bin: three of five right at a mean confidence of 0.76.
    assert metrics.calibration_error(p, y, bins=1) == pytest.approx(abs(0.6 - 0.76))


def test_perfect_predictions_score_zero():
    certain = np.eye(3)[CLASSES]
    for score in (metrics.error, metrics.negative_log_likelihood, metrics.brier, metrics.calibration_error):
        assert score(certain, CLASSES) == 0


def test_root_mean_squared_error_is_scikit_learns():
    y = GENERATOR.normal(size=50)
    assert metrics.root_mean_squared_error(VECTOR, y) == pytest.approx(sk.root_mean_squared_error(y, VECTOR))


@pytest.mark.parametrize(
    ("probabilities", "y", "message"),
    [
        (MATRIX, np.where(np.arange(50) == 7, 3, CLASSES), "Row 7 has the label 3: labels are 0 to 2"),
        (MATRIX, np.where(np.arange(50) == 7, -1, CLASSES), "Row 7 has the label -1"),
        (VECTOR, np.where(np.arange(50) == 4, 0.5, BINARY), "Row 4 has the label 0.5: labels are 0 to 1"),
        (VECTOR, np.where(np.arange(50) == 4, np.nan, BINARY), "Row 4 has the label nan"),
        (MATRIX, CLASSES[:20], "50 rows of probabilities and 20 labels"),
        (np.zeros((0, 3)), np.zeros(0), "0 rows of probabilities and 0 labels"),
    ],
)
def test_labels_that_do_not_fit_are_refused(probabilities, y, message):
    with pytest.raises(InputError, match=message):
        metrics.brier(probabilities, y)


@pytest.mark.parametrize(("mean", "pruned"), [(0.0, 1), (0.447, 1), (-0.447, 1), (0.448, 0), (3.0, 0)])
def test_a_parameter_is_pruned_where_its_divergence_is_small(mean, pruned):
    """KL(N(m, 1) ‖ N(0, 1)) = m²/2, which is 0.1 at m = 0.4472."""
    q = pt.MeanFieldGaussian.from_mean_sd(jnp.array([mean]), 1.0)
    assert metrics.pruned(q, pt.MeanFieldGaussian.standard_normal(1)) == pruned


def test_pruned_parameters_are_counted_over_a_tree_and_by_quadrature():
    """No divergence lies so near to a threshold that quadrature could err about it."""
    generator = np.random.default_rng(1)
    mean, sd = generator.normal(0.5, 0.3, 24), generator.uniform(0.7, 1.6, 24)

    def tree(values):
        return {"bias": jnp.array(values[:4]), "weight": jnp.array(values[4:]).reshape(5, 4)}

    def divergence(m, s):
        def integrand(x):
            return norm.pdf(x, m, s) * (norm.logpdf(x, m, s) - norm.logpdf(x, 0.5, 1.2))

        return quad(integrand, m - 12 * s, m + 12 * s)[0]

    exact = np.array([divergence(m, s) for m, s in zip(mean, sd, strict=True)])
    q = pt.MeanFieldGaussian.from_mean_sd(tree(mean), tree(sd))
    prior = pt.MeanFieldGaussian.from_mean_sd(tree(np.full(24, 0.5)), 1.2)
    for threshold in (0.02, 0.05, 0.1):
        assert np.abs(exact - threshold).min() > 1e-5
        assert 0 < (exact < threshold).sum() < 24
        assert metrics.pruned(q, prior, threshold) == (exact < threshold).sum()


def test_only_parameters_with_marginals_of_their_own_are_counted():
    full = pt.FullGaussian.standard_normal(2)
    with pytest.raises(InputError, match="MeanFieldGaussian, not for FullGaussian"):
        metrics.pruned(full, full)
