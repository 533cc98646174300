"""The reports and figures in the project's folders are those of the tables beside them."""

import pathlib

import pytest

from partita_experiments import presentation, store
from support.made_up_cells import CLIENTS, DIGESTS, results_of_all_methods

FOLDERS = sorted(path.parent for path in pathlib.Path(__file__).parents[1].glob(f"**/{store.FILE}"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_report_and_figures_tell_what_the_table_does(folder):
    name = store.load(folder / store.FILE).experiment
    assert presentation.outdated(name, folder) == [], f"run `partita-experiment report {name}` on the table"


def test_files_that_tell_something_else_are_found(tmp_path):
    cells = [one | DIGESTS for one in results_of_all_methods().cells]
    store.save(tmp_path / store.FILE, store.Stored("uci", cells, CLIENTS))
    written = presentation.from_table("uci", tmp_path / store.FILE, None, None)
    assert presentation.outdated("uci", tmp_path) == []
    cells[0]["rows"][-1]["nll"] = 0.123
    store.save(tmp_path / store.FILE, store.Stored("uci", cells, CLIENTS))
    assert presentation.outdated("uci", tmp_path) == [file for file in written.files if not file.endswith("html")]
