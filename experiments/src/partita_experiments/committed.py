"""Tables of results, of whichever experiment or study they are, and what is drawn from each."""

import importlib
from pathlib import Path

from partita.errors import unknown
from partita_experiments import presentation, store, study
from partita_experiments.config import NAMES, TABLED
from partita_experiments.report import Report


def tables(folder: Path) -> list[Path]:
    """All tables of results in a folder and those within it."""
    return sorted(folder.rglob(store.FILE))


def write(table: Path) -> Report:
    """Writes report and figures of a table beside it, without running anything."""
    name = store.experiment_of(table)
    if name in NAMES:
        return presentation.from_table(name, table, None, None)
    return study.write_report(study_named(name), table, table.parent)


def outdated(table: Path) -> list[str]:
    """The files beside a table that do not tell what it does."""
    name = store.experiment_of(table)
    if name in NAMES:
        return presentation.outdated(name, table.parent)
    return study.outdated(study_named(name), table)


def study_named(name: str) -> study.Study:
    """The study of this name; an `InputError` where there is none that keeps a table."""
    if name not in TABLED:
        raise unknown("experiment with a table", name, (*NAMES, *TABLED))
    found: study.Study = importlib.import_module(f"partita_experiments.{name}").STUDY
    return found
