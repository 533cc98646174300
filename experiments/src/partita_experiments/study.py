"""A study's results as data: a tidy table of what it measured, and report and figures from the table alone.

A study asks something else than how methods compare, and has a module of its own with a `STUDY`. A row of its table is
one measurement: `part` says of which part of the study, `digest` with what settings, `version` by which version.
"""

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.figure import Figure

from partita import __version__
from partita.io.atomic import write, write_bytes, write_text
from partita_experiments import store
from partita_experiments.figure import DIGEST, drawn
from partita_experiments.report import Heading, Part, Picture, Report, ReportTable, Text, markdown, page

Row = Mapping[str, Any]
Rows = Sequence[Row]


class Drawing(NamedTuple):
    """A figure of a table."""

    picture: Picture
    draw: Callable[[Rows], Figure]


class Study(NamedTuple):
    """What a study is, but for how it is run."""

    name: str
    title: str
    question: str
    settings: Mapping[str, Any]
    """The settings of each of its parts."""
    tell: Callable[[Rows], list[Part]]
    """The tables and statements of a report."""
    drawings: Sequence[Drawing]

    def digest(self, part: str) -> str:
        """A digest of a part's settings; empty if there is no such part."""
        about = json.dumps(self.settings[part], sort_keys=True) if part in self.settings else ""
        return about and hashlib.sha256(about.encode()).hexdigest()[:16]

    def row(self, part: str, **measured: Any) -> Row:
        """A measurement of a part with its settings as they are."""
        return {"part": part, **measured, "digest": self.digest(part), "version": __version__}


def save(path: Path, study: Study, rows: Rows) -> None:
    """Writes the table: numbers in single precision, of which reports show four decimals."""
    table = pa.Table.from_pylist(list(rows))
    for place, field in enumerate(table.schema):
        if pa.types.is_floating(field.type):
            kept = store.rounded(table.column(place).to_numpy(), 17)
            table = table.set_column(place, field.name, pa.array(kept))
    contents = io.BytesIO()
    about = json.dumps({"experiment": study.name})
    pq.write_table(table.replace_schema_metadata({store.META: about}), contents, compression="zstd")
    write_bytes(path, contents.getvalue())


def load(path: Path) -> Rows:
    """The rows of a study's table."""
    return store.opened(path).to_pylist()


def stale(study: Study, rows: Rows) -> list[str]:
    """The parts whose measurements are of other settings than the study's."""
    return sorted({row["part"] for row in rows if row["digest"] != study.digest(row["part"])})


def write_report(study: Study, table: Path, folder: Path) -> Report:
    """Writes `report.md`, `report.html` and the figures of a table."""
    rows = load(table)
    parts = _parts(study, rows)
    folder.mkdir(parents=True, exist_ok=True)
    for drawing in study.drawings:
        _draw(folder / drawing.picture.file, drawing, rows)
    write_text(folder / "report.md", markdown(study.title, parts))
    write_text(folder / "report.html", page(study.title, parts))
    return Report(parts, ("report.md", "report.html", *(drawing.picture.file for drawing in study.drawings)))


def outdated(study: Study, table: Path) -> list[str]:
    """The files beside a table that do not tell what it does: the report, and figures by their digests."""
    rows, folder = load(table), table.parent
    told = markdown(study.title, _parts(study, rows))
    found = ["report.md"] if (folder / "report.md").read_text(encoding="utf-8") != told else []
    files = [drawing.picture.file for drawing in study.drawings]
    return found + [file for file in files if drawn(folder / file) != _digest(rows)]


def _parts(study: Study, rows: Rows) -> list[Part]:
    """What the report says."""
    pictures = [drawing.picture for drawing in study.drawings]
    counts = {part: [row for row in rows if row["part"] == part] for part in dict.fromkeys(row["part"] for row in rows)}
    old = stale(study, rows)
    table = [
        [part, f"{len(some)}", "stale" if part in old else "", ", ".join(sorted({row["version"] for row in some}))]
        for part, some in counts.items()
    ]
    return [
        Text(study.question),
        *pictures,
        *study.tell(rows),
        Heading("The measurements"),
        Text("*Stale* are those of other settings than the study's now; a new run makes them again."),
        ReportTable(["part", "measurements", "stale", "version"], table),
    ]


def _draw(path: Path, drawing: Drawing, rows: Rows) -> None:
    figure = drawing.draw(rows)
    write(path, lambda file: figure.savefig(file, dpi=130, format="png", metadata={DIGEST: _digest(rows)}))


def _digest(rows: Rows) -> str:
    """A hash of a table's measurements, which every figure of it carries."""
    return hashlib.sha256(json.dumps(list(rows)).encode()).hexdigest()[:16]
