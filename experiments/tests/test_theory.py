"""The figures on what the paper says in passing."""

import json

import pytest
from typer.testing import CliRunner

from partita_experiments.cli import app


@pytest.mark.slow
def test_a_quick_run_writes_the_files_it_reports(tmp_path):
    done = CliRunner().invoke(app, ["theory", "--quick", "--json", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert max(report["errors"]["mirror descent with KL(q ‖ q_old)"]) < 1e-10
    assert report["errors"]["mirror descent as printed"][0] > 0.1
    assert all((tmp_path / file).stat().st_size > 100 for file in report["files"])
