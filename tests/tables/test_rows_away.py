"""A fit whose rows are elsewhere, as after loading: it tells what factors tell, and refuses the rest by a sentence."""

import numpy as np
import pytest

import partita as pt
from partita.errors import DataError


def table(seed, sites):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=90)
    return {"x": x, "y": rng.poisson(np.exp(0.3 * x)), "site": np.repeat(sites, 90 // len(sites))}


@pytest.fixture(scope="module")
def here():
    return pt.fit("y ~ x", table(0, ["a", "all", "c"]), family="poisson", sites="site")


@pytest.fixture(scope="module")
def loaded(here, tmp_path_factory):
    folder = tmp_path_factory.mktemp("study") / "study"
    here.save(folder)
    return pt.Fit.load(folder)


NEEDS_ROWS = {
    "check": lambda fit: fit.check(),
    "loo": lambda fit: fit.loo(),
    "marginal_effect": lambda fit: fit.marginal_effect("x"),
    "to_arviz": lambda fit: fit.to_arviz(rows=True),
    "compare": lambda fit: pt.compare({"one": fit, "other": fit}),
}


@pytest.mark.parametrize("question", NEEDS_ROWS.values(), ids=NEEDS_ROWS)
def test_what_needs_rows_is_refused_by_a_sentence(question, loaded):
    with pytest.raises(DataError, match="The rows of a are not at hand, and came from no file"):
        question(loaded)


def test_rows_of_a_later_batch_do_not_pass_for_all(loaded):
    with pytest.raises(DataError, match="The rows of a are not at hand"):
        loaded.update(table(1, ["d"]), "d").loo()


def test_factors_tell_the_same_without_rows(here, loaded, tmp_path):
    assert repr(loaded.heterogeneity()) == repr(here.heterogeneity())
    assert "\nall  " in repr(here.heterogeneity())  # a site of that name is a site
    assert loaded.by_site("x") == here.by_site("x")
    loaded.report(tmp_path / "report.html")
    assert "The rows of a are not at hand" in (tmp_path / "report.html").read_text()
