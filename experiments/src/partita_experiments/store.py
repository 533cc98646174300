"""Results as data: one compact, tidy table of an experiment's cells, to be committed, merged and drawn again.

A row is one evaluation of one run on one problem with one seed. What belongs to the whole cell stands in each of its
rows, which compresses to next to nothing. Digests say of what the cell is a result: of its settings, of everybody's
rows, and of the clients' compiled program; neither the version nor the place of files is among them. Numbers are kept
with as many digits as reports and figures tell apart.
"""

import base64
import io
import itertools
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float

from partita.errors import InputError
from partita.io.atomic import write_bytes

FILE = "results.parquet"
"""The name of an experiment's table in its folder."""
COUNTS = ("communications", "gradient_steps", "synchronous_steps")
"""The whole numbers among the stored columns of a history."""
SINGLE = 23
"""How many binary digits after the first single precision has."""
DIGITS = {"rounds": SINGLE, "clock": SINGLE, "free_energy": 26, "nll": 20, "error": SINGLE, "pruned": SINGLE}
"""The others, and how many binary digits after the first are kept of each: differences of free energies count."""
NUMBERS = (*COUNTS, *DIGITS)
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
        ("seconds", pa.float32()),
        ("client", pa.string()),
        *((name, pa.int32()) for name in COUNTS),
        *((name, pa.float32() if digits <= SINGLE else pa.float64()) for name, digits in DIGITS.items()),
    ]
)
_OPTIONAL = pa.schema([(name, pa.list_(pa.float32()) if name == "by_recency" else pa.float32()) for name in MEASURED])
_SPLIT = ("clock", "free_energy", "nll")
"""Columns of which hardly two numbers are equal: byte by byte they compress to half, as no dictionary does."""
META = b"partita"
"""Under which a table's file says of which experiment it is."""
_CLIENTS = b"partita clients"
"""Under which it has a table of clients for each problem, compressed."""

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
            **{name: int(row[name]) for name in COUNTS},
            **{name: float(row[name]) for name in DIGITS},
            **{name: np.asarray(row[name], float).tolist() for name in MEASURED if name in row},
        }
        for cell in stored.cells
        for row in cell["rows"]
    ]
    about = {
        META: json.dumps({"experiment": stored.experiment, "smoke": stored.smoke}, sort_keys=True),
        _CLIENTS: base64.b64encode(zlib.compress(json.dumps(stored.clients, sort_keys=True).encode(), 9)),
    }
    measured = [field for field in _OPTIONAL if any(field.name in row for row in rows)]
    schema = pa.schema([*_SCHEMA, *measured], about)
    table = pa.Table.from_pylist(rows, schema)
    for name, digits in DIGITS.items():
        place = schema.get_field_index(name)
        kept = pa.array(rounded(np.array([row[name] for row in rows]), digits), schema.field(place).type)
        table = table.set_column(place, schema.field(place), kept)
    contents = io.BytesIO()
    pq.write_table(
        table,
        contents,
        compression="zstd",
        compression_level=19,
        use_dictionary=[name for name in table.column_names if name not in (*_SPLIT, *COUNTS)],
        column_encoding={
            **dict.fromkeys(_SPLIT, "BYTE_STREAM_SPLIT"),
            **dict.fromkeys(COUNTS, "DELTA_BINARY_PACKED"),
        },
    )
    write_bytes(path, contents.getvalue())


def rounded(values: Float[np.ndarray, " n"], digits: int) -> Float[np.ndarray, " n"]:
    """Numbers with so many binary digits after the first; what is not finite stays."""
    fractions, exponents = np.frexp(np.asarray(values, float))
    return np.ldexp(np.round(np.ldexp(fractions, digits + 1)), exponents - digits - 1)


def load(path: Path) -> Stored:
    """Reads a table; an `InputError` says what is wrong with the file."""
    table = opened(path)
    metadata = table.schema.metadata
    described = json.loads(metadata[META])
    try:
        kept = pa.schema([*_SCHEMA, *(field for field in _OPTIONAL if field.name in table.column_names)])
        table = table.select(kept.names).cast(kept)  # tables once had all numbers in double precision
    except (KeyError, pa.ArrowInvalid):
        raise _no_table(path) from None
    packed = metadata.get(_CLIENTS)  # tables once had clients among the rest
    clients = described["clients"] if packed is None else json.loads(zlib.decompress(base64.b64decode(packed)))
    return Stored(described["experiment"], list(_cells(table.to_pylist())), clients, described["smoke"])


def opened(path: Path) -> pa.Table:
    """A table of results of any kind as it is in its file."""
    try:
        table = pq.read_table(io.BytesIO(path.read_bytes()))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or 'it is no Parquet file'}.") from None
    except pa.ArrowInvalid:
        raise InputError(f"{path} is no Parquet file: use one that an experiment has written.") from None
    if META not in (table.schema.metadata or {}):
        raise _no_table(path)
    return table


def experiment_of(path: Path) -> str:
    """The name of the experiment, or of the study, whose results a table has."""
    return json.loads(opened(path).schema.metadata[META])["experiment"]


def _no_table(path: Path) -> InputError:
    return InputError(f"{path} is no table of results: use one that an experiment of this version has written.")


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
