"""`partita-experiment` as a user meets it."""

import json
import re
import subprocess
import sys
from importlib import resources

import pytest

import partita_experiments as experiments
from partita_experiments import store
from partita_experiments.cli import STUDIES, main
from partita_experiments.estimate import Forecast
from partita_experiments.experiment import Settings, _print_plan
from partita_experiments.runner import Plan

HEART = {run.curve for run in experiments.load("heart").runs}


def partita_experiment(*arguments):
    command = [sys.executable, "-m", "partita_experiments", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def run(monkeypatch, *arguments):
    """In this process: starting one takes longer than all the rest. Gives the exit code."""
    monkeypatch.setattr(sys, "argv", ["partita-experiment", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_help_lists_the_experiments(monkeypatch, capsys):
    assert run(monkeypatch, "--help") == 0
    shown = capsys.readouterr().out.replace("-\n", "-")  # a narrow terminal breaks long names
    words = re.sub(r"(?<=-)\s+", "", shown).replace(",", " ").replace(".", " ").split()
    assert {*experiments.NAMES, *STUDIES} <= set(words)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experiment")
    return folder, partita_experiment("heart", "--quick", "--workers", "1", "--output", str(folder), "--json")


def test_an_experiment_writes_table_figure_and_report(experiment):
    folder, done = experiment
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["cells"] == 22
    assert set(report["final"]["hospitals"]) == HEART
    clients = store.load(folder / store.FILE).clients["hospitals"]
    assert [client["client"] for client in clients] == [f"owner {k}" for k in range(4)]
    for file, path in report["files"].items():
        assert path == str(folder / file)
    assert (folder / "made-up.png").read_bytes().startswith(b"\x89PNG")
    assert "(smoke run" in (folder / "report.md").read_text().splitlines()[0]
    assert "FLamby: FedAvg" in (folder / "report.html").read_text()


def numbers(folder):
    stored = store.load(folder / store.FILE)
    return [{name: value for name, value in cell.items() if name != "seconds"} for cell in stored.cells]


def test_rerunning_an_experiment_reuses_all_cells_and_writes_the_same_table(experiment):
    folder, _ = experiment
    before = numbers(folder)
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("cells/**/*.json")}
    assert len(times) == 22
    done = partita_experiment("heart", "--quick", "--workers", "1", "--output", str(folder))
    assert done.returncode == 0, done.stderr
    assert "22 cells" in done.stdout
    assert numbers(folder) == before
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("cells/**/*.json")} == times


def test_the_report_is_written_again_from_the_table_alone(experiment, tmp_path, monkeypatch, capsys):
    """In another folder, without the cells; also of a table that was merged from halves."""
    folder, _ = experiment
    whole = store.load(folder / store.FILE)
    for name, cells in (("first", whole.cells[::2]), ("second", whole.cells[1::2])):
        store.save(tmp_path / name, whole._replace(cells=cells))
    assert run(monkeypatch, "merge", str(tmp_path / "merged"), str(tmp_path / "first"), str(tmp_path / "second")) == 0
    for table in (folder / store.FILE, tmp_path / "merged"):
        output = tmp_path / "report"
        assert run(monkeypatch, "report", "heart", "--table", str(table), "--output", str(output)) == 0
        written = (output / "report.md").read_text()
        for run_of in HEART:
            assert f"| {run_of} | 2 of 2 |" in written
        assert (output / "report.html").exists()
    capsys.readouterr()


@pytest.mark.slow
def test_a_plan_is_printed_and_nothing_is_run(experiment, tmp_path):
    """What is done is not left to do."""
    begun, _ = experiment
    done = partita_experiment("heart", "--quick", "--plan", "--output", str(begun))
    assert done.returncode == 0, done.stderr
    assert "Nothing is left to run: 22 cells are there." in done.stdout
    folder = tmp_path / "results"
    done = partita_experiment("heart", "--quick", "--seeds", "3", "--plan", "--output", str(folder), "--json")
    assert done.returncode == 0, done.stderr
    left = json.loads(done.stdout)
    assert {row["run"]: row["cells"] for row in left["runs"]} == dict.fromkeys(HEART, 3)
    assert left["seconds"] >= sum(row["seconds"] for row in left["runs"]) > 0
    assert not folder.exists()


@pytest.mark.slow
def test_an_experiment_on_images_prints_a_forecast_first(tmp_path):
    """On a configuration with few of the runs."""
    whole = resources.files("partita_experiments").joinpath("mnist-damping.toml").read_text()
    kept = [line for line in whole.splitlines() if "ρ = " not in line or "0.5" in line]
    config, output = tmp_path / "mine.toml", tmp_path / "results"
    config.write_text("\n".join(["log_metrics = true", 'panels = ["nll", "pruned"]', *kept]))
    done = partita_experiment("mnist-damping", "--quick", "--config", str(config), "--output", str(output))
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    # ten clients whose visits have at most twenty steps: twenty communications each
    assert said.startswith("2 cells to run with 40 communications and at most 800 gradient steps, at most about")
    assert "(a step takes" in said
    report = (output / "report.md").read_text()
    assert "| synchronous PVI | 0.5 |" in report
    assert (output / "digits.png").read_bytes().startswith(b"\x89PNG")
    assert "sequential, ρ = 0.5" in {cell["run"] for cell in store.load(output / "results.parquet").cells}


def test_a_plan_is_a_table_with_a_row_per_run(capsys, tmp_path):
    plan = Plan(experiments.load("mnist-damping").smoke_version(), tmp_path)
    left = [Forecast("homogeneous", f"sequential, ρ = {k}", 1, 20, 4000, 90.0, 0.01, 0.1) for k in range(3)]
    _print_plan(plan, left, Settings("mnist-damping", workers=1), as_json=False)
    printed = capsys.readouterr().out
    assert "homogeneous" in printed
    rows = [line for line in printed.splitlines() if "sequential" in line]
    assert len(rows) == 3
    assert all("4,000" in row and "2 min" in row for row in rows)
    assert "3 cells to run with 60 communications and at most 12,000 gradient steps" in " ".join(printed.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mnist"], "There is no experiment named 'mnist': choose one of uci, uci-adam, mortality, heart"),
        (["uci", "--problem", "adult C"], "There is no problem named 'adult C': choose one of adult A"),
        (["heart", "--quick", "--solver", "euler"], "There is no solver named 'euler'"),
        (["mortality", "--data", "mimic"], "MIMIC-III"),
        (
            ["mortality", "--data", "stays"],
            "no other data set for mortality named 'stays': choose one of mimic",
        ),
        (["heart", "--config", "nowhere.toml"], "nowhere.toml cannot be used"),
        (["report", "mnist"], "There is no experiment with a table named 'mnist'"),
        (["report"], "Options without an experiment: name the one whose report is to be written"),
        (["report", "uci", "--table", "nowhere.parquet"], "nowhere.parquet cannot be read: No such file"),
    ],
)
def test_invalid_arguments_print_an_error_message_and_create_no_folder(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PARTITA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PARTITA_DATA", raising=False)
    assert run(monkeypatch, *arguments, "--output", str(tmp_path / "results")) == 2
    assert words in capsys.readouterr().err.replace("\n", " ")
    assert not list(tmp_path.rglob("cells"))
