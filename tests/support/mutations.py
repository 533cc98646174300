"""Ways to change bytes: anywhere, or so that what holds them stays valid."""

import contextlib
import functools
import io
import json
import sqlite3
import struct
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from partita.io import archive, wire
from partita.storage.records import insert

Generator = np.random.Generator
VALUES = (None, True, -1, 0, 1, 2**70, 1.5, -0.0, 1e308, np.nan, np.inf, "", "x", "0", [], [1], {}, {"a": 1})
"""What a value of JSON may become."""


class Mutation(NamedTuple):
    """A change of some bytes."""

    name: str
    apply: Callable[[bytes, Generator], bytes]
    sealed: bool = False
    """Whether it makes a sound file of other content: then that may be accepted."""


def _place(data: bytes, generator: Generator) -> int:
    """Anywhere, or half the time where something is written: files of SQLite are mostly zeros."""
    written = _written(data) if generator.random() < 0.5 else ()
    if len(written):
        return int(written[generator.integers(len(written))])
    return int(generator.integers(max(len(data), 1)))


@functools.lru_cache(maxsize=4)
def _written(data: bytes) -> np.ndarray:
    return np.flatnonzero(np.frombuffer(data, np.uint8))


def _piece(data: bytes, generator: Generator) -> tuple[int, int]:
    start = _place(data, generator)
    return start, min(len(data), start + int(2 ** generator.uniform(0, 12)))


def _flipped(data: bytes, generator: Generator) -> bytes:
    changed = bytearray(data)
    for _ in range(generator.integers(1, 9)):
        changed[_place(data, generator)] ^= 1 << int(generator.integers(8))
    return bytes(changed)


def _changed(data: bytes, generator: Generator) -> bytes:
    changed = bytearray(data)
    for _ in range(generator.integers(1, 9)):
        changed[_place(data, generator)] = int(generator.integers(256))
    return bytes(changed)


def _cut(data: bytes, generator: Generator) -> bytes:
    start, end = _piece(data, generator)
    return (data[:start], data[end:], data[:start] + data[end:])[generator.integers(3)]


def _doubled(data: bytes, generator: Generator) -> bytes:
    start, end = _piece(data, generator)
    return data[:end] + data[start:end] + data[end:]


def _swapped(data: bytes, generator: Generator) -> bytes:
    (start, end), (other, last) = sorted(_piece(data, generator) for _ in range(2))
    end = min(end, other)
    return data[:start] + data[other:last] + data[end:other] + data[start:end] + data[last:]


def _inserted(data: bytes, generator: Generator) -> bytes:
    start, new = _place(data, generator), generator.bytes(int(2 ** generator.uniform(0, 10)))
    return data[:start] + new + data[start + len(new) * int(generator.integers(2)) :]


ANYWHERE = (
    Mutation("flipped bits", _flipped),
    Mutation("changed bytes", _changed),
    Mutation("a piece cut", _cut),
    Mutation("a piece doubled", _doubled),
    Mutation("pieces swapped", _swapped),
    Mutation("bytes inserted", _inserted),
)


def other_json(tree: Any, generator: Generator) -> Any:
    """JSON in which an entry somewhere is missing, repeated, or another value."""
    if not isinstance(tree, dict | list) or not tree or generator.random() < 0.15:
        return VALUES[generator.integers(len(VALUES))]
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    key = keys[generator.integers(len(keys))]
    if generator.random() < 0.3:
        if isinstance(tree, dict):
            return {name: value for name, value in tree.items() if name != key}
        return tree[:key] + tree[key : key + 1] * int(2 * generator.integers(2)) + tree[key + 1 :]
    changed = tree.copy()
    changed[key] = other_json(tree[key], generator)
    return changed


def other_array(array: np.ndarray, generator: Generator) -> np.ndarray:
    """An array with another value, shape or type."""
    how = generator.integers(4)
    if how == 0:
        return np.nan_to_num(array).astype(("<f4", "<i8", "<f8", "?")[generator.integers(4)])
    if how == 1:
        return np.repeat(array.reshape(-1), int(generator.integers(3)))
    changed = np.array(array)
    if changed.size:
        changed.reshape(-1)[generator.integers(changed.size)] = (7, np.nan if changed.dtype.kind == "f" else 1)[how - 2]
    return changed


def other_member(data: bytes, generator: Generator) -> dict[str, np.ndarray]:
    """The arrays of an .npz, one of which is another, missing, or under another name."""
    with np.load(io.BytesIO(data)) as file:
        arrays = {name: file[name] for name in file.files}
    name, how = list(arrays)[generator.integers(len(arrays))], generator.integers(6)
    if how == 0:
        del arrays[name]
    elif how == 1:
        arrays["other"] = arrays.pop(name)
    elif how < 4:
        arrays["about"] = np.array(json.dumps(other_json(json.loads(str(arrays["about"])), generator)))
    elif name != "about":
        arrays[name] = other_array(arrays[name], generator)
    return arrays


def npz_rewritten(data: bytes, generator: Generator) -> bytes:
    """An .npz with other contents and valid sums of its own, under the old comment."""
    file = io.BytesIO()
    np.savez(file, **other_member(data, generator))
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "a") as new:
        new.comment = old.comment
    return file.getvalue()


def with_database(data: bytes, change: Callable[[sqlite3.Connection], None]) -> bytes:
    """A file of SQLite after some statements."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(data)
        db = sqlite3.connect(path, isolation_level=None)
        try:
            db.execute("PRAGMA journal_mode = MEMORY")
            change(db)
            db.execute("PRAGMA journal_mode = WAL")
        finally:
            db.close()
        return path.read_bytes()


def other_value(value: Any, generator: Generator) -> Any:
    """Another value of a column."""
    if isinstance(value, bytes) and value and generator.random() < 0.7:
        return ANYWHERE[generator.integers(len(ANYWHERE))].apply(value, generator)
    if isinstance(value, str) and value and generator.random() < 0.7:
        try:
            return json.dumps(other_json(json.loads(value), generator))
        except ValueError:
            return value[::-1] + "x"
    return (0, 1, -1, 2**62, 0.5, 1e300, float("inf"), "", "x", b"", b"x")[generator.integers(11)]


def _record(db: sqlite3.Connection, generator: Generator) -> tuple[str, list[str], tuple[Any, ...]] | None:
    tables = sorted(name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'"))
    table = tables[generator.integers(len(tables))]
    columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    rows = db.execute(f"SELECT rowid, * FROM {table}").fetchall()
    return (table, columns, rows[generator.integers(len(rows))]) if rows else None


def sqlite_rewritten(data: bytes, generator: Generator) -> bytes:
    """A sound database in which a record is changed, missing, repeated, or in another's place."""

    def change(db: sqlite3.Connection) -> None:
        found = _record(db, generator)
        if found is None:
            return
        table, columns, (row, *values) = found
        how = generator.integers(5)
        if how == 0:
            db.execute(f"DELETE FROM {table} WHERE rowid = ?", [row])
        elif how == 1:
            key = columns.index("place" if "place" in columns else columns[1])
            values[key] = other_value(values[key], generator)
            db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(values))})", values)
        else:
            place = generator.integers(len(values))
            new = other_value(values[place], generator)
            db.execute(f"UPDATE OR REPLACE {table} SET {columns[place]} = ? WHERE rowid = ?", [new, row])

    def without_triggers(db: sqlite3.Connection) -> None:
        """Whoever damages a file does not keep its sums. What the database itself refuses leaves it as it is."""
        triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        with contextlib.suppress(sqlite3.IntegrityError, OverflowError):
            change(db)
        for _, statement in triggers:
            db.execute(statement)

    return with_database(data, without_triggers)


def npz_resealed(data: bytes, generator: Generator) -> bytes:
    """A sound archive of other contents."""
    file = io.BytesIO()
    archive.fill(file, other_member(data, generator))
    return file.getvalue()


def message_resealed(data: bytes, generator: Generator) -> bytes:
    """A sound message of which the table of contents is another."""
    (length,) = struct.unpack_from("<I", data, 24)
    head, body = json.loads(data[28 : 28 + length]), data[28 + length :]
    new = json.dumps(other_json(head, generator)).encode()
    return wire.sealed(struct.pack("<I", len(new)) + new + body)


def sqlite_resealed(data: bytes, generator: Generator) -> bytes:
    """A sound ledger in which a record is another one, and all sums are right."""

    def change(db: sqlite3.Connection) -> None:
        db.execute("PRAGMA recursive_triggers = ON")
        found = _record(db, generator)
        if found is None or found[0] == "sums":
            return
        table, _, (row, _, *values) = found
        place = generator.integers(len(values))
        values[place] = other_value(values[place], generator)
        with contextlib.suppress(sqlite3.IntegrityError, OverflowError):
            db.execute(f"DELETE FROM {table} WHERE rowid = ?", [row])
            insert(db, table, [values])

    return with_database(data, change)


def toml_rewritten(data: bytes, generator: Generator) -> bytes:
    """A TOML file with another value, or with a line missing, repeated or elsewhere."""
    lines = data.decode().splitlines()
    place, how = int(generator.integers(len(lines))), generator.integers(5)
    if how == 0:
        del lines[place]
    elif how == 1:
        lines.insert(int(generator.integers(len(lines))), lines[place])
    elif "=" in lines[place]:
        key = lines[place].partition("=")[0]
        values = (*_TOML_VALUES, *(line.partition("=")[2] for line in lines))
        lines[place] = f"{key}= {values[generator.integers(len(values))]}"
    return "\n".join(lines).encode()


_TOML_VALUES = (
    *("-1", "0", "1", "3", "0.5", "-0.0", "1e400", "nan", "inf", "-inf", "9" * 30, "9" * 5000, "1000000000", "true"),
    *(
        '""',
        '"x"',
        '"\\u0000"',
        '"../.."',
        "[]",
        "[1]",
        '[""]',
        '["a", "a"]',
        "[[]]",
        "{}",
        "{ a = 1 }",
        '{ a = ["x"] }',
    ),
    *("2020-01-01", "[1000000000, 1000000000]", "[-1]", "[0]", '"[::1]:99999"', '"sequential"', '"adam"', '"network"'),
)
