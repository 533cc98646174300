"""The figures on what the paper says in passing."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import partita
from partita_experiments import forms, past_work
from partita_experiments.cli import app


@pytest.mark.slow
def test_a_quick_run_writes_the_files_it_reports(tmp_path):
    done = CliRunner().invoke(app, ["theory", "--quick", "--json", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert max(report["errors"]["mirror descent with KL(q ‖ q_old)"]) < 1e-10
    assert report["errors"]["mirror descent as printed"][0] > 0.1
    assert all((tmp_path / file).stat().st_size > 100 for file in report["files"])


def test_the_table_of_past_work_has_the_papers_rows_and_names_that_exist():
    """Rows 95 to 123 of `docs/paper.md`, in their order; drawings place every one."""
    listed = [(re.match(r"\w+", work.name)[0], re.search(r"\d{4}b?", work.name)[0]) for work in past_work.works()]
    paper = (Path(past_work.PAGE).parent / "paper.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| (\w+)[^|:]*? (\d{4}b?): .*`table:past-work`", paper, re.MULTILINE)
    assert listed == [(name, year) for number, name, year in rows if 95 <= int(number) <= 123]
    assert {work.optimisation for work in past_work.works()} <= set(past_work.OPTIMISATION)
    assert {work.models for work in past_work.works()} <= set(past_work.MARKS)
    named = set(re.findall(r"(methods|solvers|models|expectations)\.(\w+)", past_work.PAGE.read_text("utf-8")))
    assert len(named) > 20
    assert [name for module, name in named if not hasattr(getattr(partita, module), name)] == []


@pytest.mark.slow
@pytest.mark.parametrize(("target", "kind"), [("two modes", "mixture"), ("banana", "flow")])
def test_posteriors_of_any_form_are_nearer_than_gaussians_and_the_same_federated(target, kind):
    """Within the noise that other points make: how far a pooled run goes from the federated posterior."""
    truth = forms.exact(target)
    _, gaussian = forms.compared(target, "Gaussian", truth, quick=False)
    _, told = forms.compared(target, kind, truth, quick=False)
    assert told["federated"] < gaussian["federated"] / 3
    assert told["from there"] < told["with other points"]
