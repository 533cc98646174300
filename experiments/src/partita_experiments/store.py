"""Results as data: one compact, tidy table of an experiment's cells, to be committed, merged and drawn again.

A row is one evaluation of one run on one problem with one seed. What belongs to the whole cell stands in each of its
rows, which compresses to next to nothing. Digests say of what the cell is a result: of its settings, of everybody's
rows, and of the clients' compiled program; neither the version nor the place of files is among them.
"""

import io
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from partita.errors import InputError
from partita.io.atomic import write_bytes

FILE = "results.parquet"
"""The name of an experiment's table in its folder."""
NUMBERS = (
    "communications",
    "rounds",
    "gradient_steps",
    "synchronous_steps",
    "clock",
    "free_energy",
    "residual",
    "nll",
    "error",
    "pruned",
)
"""The stored columns of a history; all are reproducible."""

MEASURED = ("train_nll", "train_error", "by_recency")
"""Columns that only some experiments have; `by_recency` is the NLL on the rows of the client that answered last, of the
one before it, and so on."""

_KEY = ("problem", "run", "seed")
_TEXTS = ("method", "digest", "data", "program", "version", "jax")
_JSON = ("settings", "statuses")
_SCHEMA = pa.schema(
    [
        *((name, pa.int32() if name == "seed" else pa.string()) for name in _KEY),
        *((name, pa.string()) for name in _TEXTS),
        *((name, pa.string()) for name in _JSON),
        ("seconds", pa.float64()),
        ("client", pa.string()),
        *((name, pa.float64()) for name in NUMBERS),
    ]
)
_OPTIONAL = {name: pa.list_(pa.float64()) if name == "by_recency" else pa.float64() for name in MEASURED}
_META = b"partita"

Cell = Mapping[str, Any]
"""A result: what identifies it, its digests, its endings, and `rows`, a mapping for each evaluation."""
Clients = Mapping[str, Sequence[Mapping[str, Any]]]
"""For each problem its clients' names, rows and labels."""


class Stored(NamedTuple):
    """What a table holds."""

    experiment: str
    cells: list[Cell]
    clients: Clients
    smoke: bool = False
    """Whether these are of the experiment's smoke run, which says nothing about the paper."""


def key(cell: Cell) -> tuple[str, str, int]:
    """Problem, run and seed, which identify a cell within an experiment."""
    return cell["problem"], cell["run"], cell["seed"]


def save(path: Path, stored: Stored) -> None:
    """Writes the table; the file that was there stays if the disk is full."""
    rows = [
        {
            **{name: cell[name] for name in (*_KEY, *_TEXTS)},
            **{name: json.dumps(cell[name], sort_keys=True) for name in _JSON},
            "seconds": cell["seconds"],
            "client": row.get("client"),
            **{name: float(row[name]) for name in NUMBERS},
            **{name: np.asarray(row[name], float).tolist() for name in MEASURED if name in row},
        }
        for cell in stored.cells
        for row in cell["rows"]
    ]
    about = json.dumps(
        {"experiment": stored.experiment, "clients": stored.clients, "smoke": stored.smoke}, sort_keys=True
    )
    schema = _SCHEMA
    for name in MEASURED:
        schema = schema.append(pa.field(name, _OPTIONAL[name])) if any(name in row for row in rows) else schema
    table = pa.Table.from_pylist(rows, schema.with_metadata({_META: about}))
    contents = io.BytesIO()
    pq.write_table(table, contents, compression="zstd", compression_level=19)
    write_bytes(path, contents.getvalue())


def load(path: Path) -> Stored:
    """Reads a table; an `InputError` says what is wrong with the file."""
    try:
        table = pq.read_table(io.BytesIO(path.read_bytes()))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or 'it is no Parquet file'}.") from None
    except pa.ArrowInvalid:
        raise InputError(f"{path} is no Parquet file: use one that an experiment has written.") from None
    about = (table.schema.metadata or {}).get(_META)
    known = (*_SCHEMA, *(pa.field(name, kind) for name, kind in _OPTIONAL.items()))
    if (
        about is None
        or any(field not in table.schema for field in _SCHEMA)
        or any(f not in known for f in table.schema)
    ):
        raise InputError(f"{path} is no table of results: use one that an experiment of this version has written.")
    described = json.loads(about)
    return Stored(described["experiment"], list(_cells(table.to_pylist())), described["clients"], described["smoke"])


def _cells(rows: Iterable[Mapping[str, Any]]) -> Iterable[Cell]:
    """The cells in the order of the table; a cell's rows stand together."""
    for _, group in itertools.groupby(rows, key):
        some = list(group)
        first = some[0]
        own = [name for name in (*NUMBERS, *MEASURED, "client") if first.get(name) is not None]
        yield {
            **{name: first[name] for name in (*_KEY, *_TEXTS, "seconds")},
            **{name: json.loads(first[name]) for name in _JSON},
            "rows": [{name: row[name] for name in own} for row in some],
        }


def merged(tables: Sequence[Stored]) -> Stored:
    """One table with all cells, such as those that several machines have run; of two results the later one counts."""
    names = list(dict.fromkeys(f"{stored.experiment}{' (smoke run)' * stored.smoke}" for stored in tables))
    if len(names) > 1:
        raise InputError(f"These are results of different experiments, {' and '.join(names)}: merge those of one.")
    cells = {key(cell): cell for stored in tables for cell in stored.cells}
    clients = {name: some for stored in tables for name, some in stored.clients.items()}
    return tables[0]._replace(cells=list(cells.values()), clients=clients)
