"""The parts of the experiment on hyperparameters."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from partita_experiments import hyper
from partita_experiments.cli import app


def test_the_best_of_a_grid_is_refined_by_a_parabola():
    scales = np.geomspace(0.1, 10.0, 9)
    heights = -((np.log(scales) - 0.3) ** 2) - 5.0
    (best,) = hyper.results_table(hyper.Bound(scales, np.diag(heights), scales), {})
    assert best["prior_scale"] == pytest.approx(np.exp(0.3))
    assert best["bound"] == pytest.approx(-5.0)


@pytest.mark.slow
def test_a_quick_run_writes_the_files_it_reports(tmp_path):
    done = CliRunner().invoke(app, ["hyper", "--quick", "--json", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert {row["way"] for row in report["results"]} == {"grid and parabola", "BayesianRidge", *hyper.RULE_STYLES}
    assert all((tmp_path / file).stat().st_size > 100 for file in ("results.json", "hyper.png"))
    assert len(report["files"]) == 2
