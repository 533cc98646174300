"""Estimators for scikit-learn: its own checks, other programs' numbers, and batches against all rows at once."""

import numpy as np
import pandas
import pytest
import statsmodels.api as sm
from scipy import special, stats
from sklearn.linear_model import BayesianRidge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

import partita as pt
from partita.errors import InputError

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal([3, -2, 10], [1, 5, 0.2], size=(500, 3))
FRAME = pandas.DataFrame(X, columns=list("abc"))
CENTRED = X - X.mean(0)
CLASS = np.where(GENERATOR.random(500) < 1 / (1 + np.exp(-CENTRED @ [0.3, -0.05, 0.5])), "yes", "no")
NUMBER = 40 + CENTRED @ [3.0, 0.5, -8.0] + GENERATOR.normal(0, 2, 500)
COUNT = GENERATOR.poisson(np.exp(1 + CENTRED @ [0.3, 0.05, 0.5]))
SITES = np.array(["Hull", "Leeds", "York"])[np.arange(500) % 3]
QUICK = {
    "check_estimator_cloneable",
    "check_no_attributes_set_in_init",
    "check_estimators_unfitted",
    "check_n_features_in_after_fitting",
    "check_sample_weight_equivalence_on_dense_data",
    "check_estimators_nan_inf",
    "check_estimators_pickle",
    "check_classifiers_one_label",
    "check_estimators_partial_fit_n_features",
    "check_dict_unchanged",
    "check_methods_subset_invariance",
    "check_fit_idempotent",
    "check_fit2d_1sample",
    "check_fit1d",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator", [pt.PartitionedClassifier(), pt.PartitionedRegressor(), pt.PartitionedPoissonRegressor()]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_all_checks_of_scikit_learn_pass(estimator):
    """None is expected to fail; that of array API input skips itself where SciPy's is not switched on."""
    skipped = [each["check_name"] for each in check_estimator(estimator) if each["status"] == "skipped"]
    assert skipped in ([], ["check_array_api_input"])


def test_the_quick_checks_of_scikit_learn_pass():
    checks = list(estimator_checks_generator(pt.PartitionedClassifier()))
    found = [(each, check) for each, check in checks if getattr(check, "func", check).__name__ in QUICK]
    assert len(found) >= len(QUICK)
    for estimator, check in found:
        check(estimator)


def test_classes_are_told_as_by_maximum_likelihood():
    """Under a vague prior, in the columns' own units."""
    fit = pt.PartitionedClassifier(prior_sd=100).fit(FRAME, CLASS, sites=SITES)
    exact = sm.Logit(CLASS == "yes", sm.add_constant(X)).fit(disp=0)
    own = np.concatenate([fit.intercept_, fit.coef_[0]])
    assert np.abs((own - exact.params) / exact.bse).max() < 0.05
    np.testing.assert_allclose(np.sqrt(np.diag(fit.covariance_)), exact.bse, rtol=0.02)
    np.testing.assert_allclose(fit.predict_proba(FRAME)[:, 1], exact.predict(), atol=0.01)
    assert list(fit.classes_) == ["no", "yes"]
    assert list(fit.feature_names_in_) == ["a", "b", "c"]
    assert fit.stream_.names == ("Hull", "Leeds", "York")
    assert fit.score(FRAME, CLASS) == np.mean(fit.predict(FRAME) == CLASS)


@pytest.mark.slow
def test_three_classes_are_told_as_by_maximum_likelihood():
    """Differences between classes, under a vague prior; 2,000 rows, as a posterior mean nears the mode with rows."""
    generator = np.random.default_rng(1)
    x = generator.normal([3, -2, 10], [1, 5, 0.2], size=(2000, 3))
    f = (x - x.mean(0)) @ np.array([[0, 0.4, -0.3], [0, -0.05, 0.05], [0, 0.5, 0.3]])
    place = (f + generator.gumbel(size=f.shape)).argmax(axis=1)
    label = np.array(["low", "middle", "top"])[place]
    sites = np.array(["Hull", "Leeds", "York"])[np.arange(2000) % 3]
    fit = pt.PartitionedClassifier(prior_sd=100).fit(x, label, sites=sites)
    exact = sm.MNLogit(place, sm.add_constant(x)).fit(disp=0)
    between = np.column_stack([-np.ones(2), np.eye(2)])
    own = between @ np.column_stack([fit.intercept_, fit.coef_])
    assert np.abs((own.T - exact.params) / exact.bse).max() < 0.05
    turn = np.kron(between, np.eye(4))
    sds = np.sqrt(np.diag(turn @ fit.covariance_ @ turn.T)).reshape(2, 4)
    np.testing.assert_allclose(sds.T, exact.bse, rtol=0.02)
    np.testing.assert_allclose(fit.predict_proba(x), exact.predict(), atol=0.01)
    whole = pt.PartitionedClassifier(prior_sd=100).fit(x, label)
    np.testing.assert_allclose(whole.coef_, fit.coef_, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(whole.covariance_, fit.covariance_, rtol=1e-5, atol=1e-7)


def test_classes_have_no_order():
    """Labels in another order give the same rows, and the same probabilities as draws of the coefficients.

    The nodes of the quadrature are not symmetric in classes, which is seen in the seventh digit.
    """
    label = np.array(["a", "b", "c"])[np.digitize(NUMBER[:40], np.quantile(NUMBER[:40], [0.3, 0.7]))]
    fit = pt.PartitionedClassifier().fit(X[:40], label)
    other = pt.PartitionedClassifier().fit(X[:40], np.array(["z", "y", "x"])[np.searchsorted(fit.classes_, label)])
    assert [fit.coef_.shape, fit.intercept_.shape, fit.covariance_.shape] == [(3, 3), (3,), (12, 12)]
    np.testing.assert_allclose(fit.coef_.sum(axis=0), 0, atol=1e-12)
    sds = np.sqrt(np.diag(fit.covariance_)).reshape(3, 4)[:, 1:]
    np.testing.assert_allclose(fit.coef_ / sds, other.coef_[::-1] / sds, atol=1e-5)
    found = fit.predict_proba(X)
    np.testing.assert_allclose(np.log(found), fit.decision_function(X), atol=1e-12)
    np.testing.assert_allclose(found, other.predict_proba(X)[:, ::-1], atol=1e-5)
    assert (fit.predict(X) == fit.classes_[found.argmax(axis=1)]).all()
    mean = np.column_stack([fit.intercept_, fit.coef_]).ravel()
    draws = np.random.default_rng(0).multivariate_normal(mean, fit.covariance_, 10_000, method="eigh")
    drawn = special.softmax(draws.reshape(-1, 3, 4) @ sm.add_constant(X[:20]).T, axis=1)
    np.testing.assert_allclose(found[:20], drawn.mean(axis=0).T, atol=5 * drawn.std(axis=0).max() / 100)


def test_sites_and_batches_are_one_posterior():
    whole = pt.PartitionedClassifier().fit(X, CLASS)
    sites = pt.PartitionedClassifier().fit(X, CLASS, sites=SITES)
    np.testing.assert_allclose(sites.coef_, whole.coef_, rtol=1e-5)
    np.testing.assert_allclose(sites.covariance_, whole.covariance_, rtol=1e-5)
    batches = pt.PartitionedClassifier()
    for part in np.array_split(np.arange(500), 3):
        batches.partial_fit(X[part], CLASS[part], classes=["no", "yes"])
    assert batches.stream_.names == ("batch 1", "batch 2", "batch 3")
    sd = np.sqrt(np.diag(whole.covariance_))[1:]
    assert np.abs((batches.coef_ - whole.coef_) / sd).max() < 0.2
    more = pt.PartitionedClassifier().fit(X[:300], CLASS[:300], sites=SITES[:300]).partial_fit(X[300:], CLASS[300:])
    assert more.stream_.names == ("Hull", "Leeds", "York", "batch 1")


@pytest.mark.slow
def test_the_regressor_is_exact_in_any_division():
    """Against the conjugate posterior written out, and against scikit-learn's own where its prior is as vague."""
    fit = pt.PartitionedRegressor(prior_sd=1e4).fit(X, NUMBER, sites=SITES)
    exact = sm.OLS(NUMBER, sm.add_constant(X)).fit()
    np.testing.assert_allclose([fit.intercept_, *fit.coef_], exact.params, rtol=1e-5)
    np.testing.assert_allclose(np.sqrt(np.diag(fit.covariance_)), exact.bse, rtol=0.02)
    assert fit.noise_ == pytest.approx(np.sqrt(exact.scale), rel=0.02)
    mean, sd = fit.predict(X, return_std=True)
    predicted = exact.get_prediction(sm.add_constant(X)).summary_frame(alpha=2 * stats.norm.sf(1))
    np.testing.assert_allclose(mean, predicted["mean"], rtol=1e-5)
    np.testing.assert_allclose(sd, (predicted["obs_ci_upper"] - predicted["obs_ci_lower"]) / 2, rtol=0.02)
    others = BayesianRidge().fit(X, NUMBER).predict(X, return_std=True)[1]
    np.testing.assert_allclose(sd, others, rtol=0.05)
    scaled = make_pipeline(StandardScaler(), pt.PartitionedRegressor(prior_sd=1e4)).fit(X, NUMBER)
    np.testing.assert_allclose(scaled.predict(X), mean, rtol=1e-8)
    first = pt.PartitionedRegressor().partial_fit(X[:50], NUMBER[:50])
    both = pt.PartitionedRegressor().partial_fit(X[:50], NUMBER[:50])
    both.partial_fit(X[50:300], NUMBER[50:300]).partial_fit(X[300:], NUMBER[300:])
    first.partial_fit(X[50:], NUMBER[50:])
    np.testing.assert_allclose(both.coef_, first.coef_, rtol=1e-9)
    np.testing.assert_allclose(both.covariance_, first.covariance_, rtol=1e-9)


@pytest.mark.slow
def test_counts_are_told_as_by_maximum_likelihood():
    fit = pt.PartitionedPoissonRegressor(prior_sd=100).fit(X, COUNT, sites=SITES)
    exact = sm.GLM(COUNT, sm.add_constant(X), family=sm.families.Poisson()).fit()
    assert np.abs(([fit.intercept_, *fit.coef_] - exact.params) / exact.bse).max() < 0.05
    np.testing.assert_allclose(np.sqrt(np.diag(fit.covariance_)), exact.bse, rtol=0.02)
    mean, sd = fit.predict(X, return_std=True)
    np.testing.assert_allclose(mean, exact.fittedvalues, rtol=0.02)
    draws = GENERATOR.multivariate_normal([fit.intercept_, *fit.coef_], fit.covariance_, 20_000)
    drawn = GENERATOR.poisson(np.exp(sm.add_constant(X)[:5] @ draws.T))
    np.testing.assert_allclose(sd[:5], drawn.std(axis=1), rtol=0.03)
    days = np.linspace(1, 3, 500)
    rates = pt.PartitionedPoissonRegressor(prior_sd=100).fit(X, COUNT / days, sample_weight=days)
    exact = sm.GLM(COUNT, sm.add_constant(X), family=sm.families.Poisson(), offset=np.log(days)).fit()
    assert np.abs((rates.coef_ - exact.params[1:]) / exact.bse[1:]).max() < 0.05


MISTAKES = {
    "prior sd": lambda: pt.PartitionedClassifier(prior_sd=0).fit(X, CLASS),
    "number of rounds": lambda: pt.PartitionedClassifier(rounds=0.5).fit(X, CLASS),
    "one name for each of 500 rows": lambda: pt.PartitionedClassifier().fit(X, CLASS, sites=["a"]),
    "one class only": lambda: pt.PartitionedClassifier().fit(X, np.full(500, "no")),
    "at most 20": lambda: pt.PartitionedClassifier().fit(X, np.arange(500) % 21),
    "none of the classes": lambda: pt.PartitionedClassifier().partial_fit(X, CLASS, classes=["a", "b"]),
    "all are zero": lambda: pt.PartitionedClassifier().fit(X, CLASS, sample_weight=np.zeros(500)),
    "negative": lambda: pt.PartitionedPoissonRegressor().fit(X, -NUMBER),
}


@pytest.mark.parametrize("said", MISTAKES)
def test_mistakes_are_one_sentence(said):
    with pytest.raises(InputError, match=said) as refused:
        MISTAKES[said]()
    assert "\n" not in str(refused.value)
