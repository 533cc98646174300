"""The parts of the experiment that compares power EP and PVI with NUTS; chains themselves need NumPyro."""

import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from partita import LinearRegression, Table
from partita.errors import InputError
from partita.local.solvers import PowerEP
from partita_experiments import ep
from partita_experiments.cli import app

_generator = np.random.default_rng(0)
X = _generator.normal(size=(30, 3))
Y = X @ [1.0, -1.0, 0.5] + _generator.normal(size=30) / 2
SMALL = ep.QUICK[0]._replace(proposals=2 * ep.BATCH)


def test_the_evidence_is_exact_where_the_posterior_is_gaussian():
    found = ep.evidence(LinearRegression(0.5), Table(X, Y), SMALL)
    marginal = X @ X.T + 0.25 * np.eye(30)
    expected = -(Y @ np.linalg.solve(marginal, Y) + np.linalg.slogdet(2 * np.pi * marginal)[1]) / 2
    assert found["log_evidence"] == pytest.approx(expected, abs=1e-6)
    assert found["standard_error"] < 1e-6
    assert found["effective"] == pytest.approx(SMALL.proposals)


def test_errors_are_averages_over_parameters():
    nuts = {"mean": [0.0, 1.0], "sd": [1.0, 2.0]}
    one = {"mean": [0.5, 2.0], "sd": [0.9, 2.4], "log_evidence": -1.0, "steps": 3, "outcome": "", "skipped": 0}
    found = ep.errors({**one, "seconds": 1.0}, nuts)
    assert found["sd_error"] == pytest.approx(0.15)
    assert found["sd_bias"] == pytest.approx(0.05)
    assert found["mean_error"] == pytest.approx(0.5)


def test_cached_results_are_reused_only_for_the_same_settings(tmp_path):
    computed = []

    def compute():
        computed.append(1)
        return {"value": len(computed)}

    solver, other = PowerEP(0.5), PowerEP(0.5, points=48)
    asked = [(SMALL, None), (SMALL, None), (SMALL, solver), (SMALL, solver), (SMALL, other), (ep.WHOLE[0], other)]
    found = [ep.cached_result(tmp_path, scale, "a cell", compute, by)["value"] for scale, by in asked]
    assert found == [1, 1, 2, 2, 3, 4]


def test_without_numpyro_an_error_explains_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpyro.infer", None)
    with pytest.raises(InputError, match=r"pip install './experiments\[nuts\]'"):
        ep.reference(LinearRegression(0.5), Table(X, Y), SMALL)


def test_unsupported_options_are_refused():
    result = CliRunner().invoke(app, ["ep", "--seeds", "2"])
    assert result.exit_code == 2
    assert "No such option" in result.output
    assert "--seeds" in result.output
