"""The reports and figures in the project's folders are those of the tables beside them, of whichever experiment."""

import pathlib

import pytest

from partita import InputError
from partita_experiments import committed, experiment, presentation, store, study
from partita_experiments.inhomogeneity import STUDY
from support.made_up_cells import CLIENTS, DIGESTS, results_of_all_methods

FOLDER = pathlib.Path(__file__).parents[1]
TABLES = committed.tables(FOLDER)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.parent.relative_to(FOLDER).as_posix())
def test_report_and_figures_tell_what_the_table_does(table):
    assert committed.outdated(table) == [], "run `partita-experiment report` in the folder experiments"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.parent.relative_to(FOLDER).as_posix())
def test_a_table_of_a_project_is_small(table):
    assert table.stat().st_size < 150 * 1024


def made_up(path, **changes):
    cells = [one | DIGESTS for one in results_of_all_methods().cells]
    cells[0] = cells[0] | changes
    store.save(path / store.FILE, store.Stored("uci", cells, CLIENTS))
    return path / store.FILE


def test_files_that_tell_something_else_are_found(tmp_path):
    table = made_up(tmp_path)
    written = committed.write(table)
    assert committed.outdated(table) == []
    cells = store.load(table).cells
    cells[0]["rows"][-1]["nll"] = 0.123
    store.save(table, store.Stored("uci", cells, CLIENTS))
    assert committed.outdated(table) == [file for file in written.files if not file.endswith("html")]


def test_a_stale_cell_is_named(tmp_path):
    """Its seed in the report, which is not what it was before."""
    table = made_up(tmp_path)
    plan, stored = presentation.opened("uci", table, None)
    digests = {(cell.problem.name, cell.run.curve, cell.seed): plan.digest(cell) for cell in plan.cells()}
    cells = [one | {"digest": digests[store.key(one)]} for one in stored.cells]
    store.save(table, stored._replace(cells=cells))
    committed.write(table)
    line = "| credit B | sequential | 3 of 5 | {} | 0.1.0 | 2 |"
    assert line.format("") in (tmp_path / "report.md").read_text()
    cells[1] = cells[1] | {"digest": "of other settings"}
    store.save(table, stored._replace(cells=cells))
    assert committed.outdated(table) == ["report.md"]
    committed.write(table)
    assert line.format("seed 1") in (tmp_path / "report.md").read_text()


def measurements(**changes):
    """Two parts of the study of inhomogeneity, with two seeds of two clients."""
    return [
        {**STUDY.row(part, seed=seed, way=way, client=client, rows=30, log_density=-0.5 - 0.1 * seed), **changes}
        for part in list(STUDY.settings)[:2]
        for way in ("one shared", "each alone", "partially pooled")
        for seed in range(2)
        for client in "ab"
    ]


def test_a_study_has_a_table_too_and_names_its_stale_parts(tmp_path):
    table, rows = tmp_path / store.FILE, measurements()
    study.save(table, STUDY, rows)
    assert study.load(table)[0] == rows[0]
    committed.write(table)
    assert committed.outdated(table) == []
    part = rows[0]["part"]
    assert f"| {part} | 12 |  |" in (tmp_path / "report.md").read_text()
    study.save(table, STUDY, [row | {"digest": "old"} if row["part"] == part else row for row in rows])
    assert committed.outdated(table) == ["report.md", "inhomogeneity.png"]
    committed.write(table)
    assert f"| {part} | 12 | stale |" in (tmp_path / "report.md").read_text()


def test_all_reports_are_written_by_one_command(tmp_path, capsys):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    made_up(tmp_path / "one")
    study.save(tmp_path / "other" / store.FILE, STUDY, measurements())
    experiment.report_all(tmp_path, as_json=False)
    said = capsys.readouterr().out
    assert "one/credit.png" in said
    assert "other/inhomogeneity.png" in said
    assert all(committed.outdated(table) == [] for table in committed.tables(tmp_path))


def test_without_a_table_there_is_nothing_to_report(tmp_path):
    with pytest.raises(InputError, match=r"no results\.parquet in this folder or below"):
        experiment.report_all(tmp_path, as_json=False)
