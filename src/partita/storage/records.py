"""Records in an SQLite file: a checksum of each, and one over each table, so that none is changed, missing or repeated.

SQLite itself notices damage to its own structure only. The sum over a table is kept by triggers, whoever writes.
"""

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from partita.errors import DamagedFileError, DiskError
from partita.io.checksum import checksum

__all__ = [
    "append",
    "create",
    "damaged",
    "exists",
    "insert",
    "opened",
    "records",
    "schema",
    "snapshot",
    "sum_of",
    "translated",
]

_SUMS = "sums"
_UNWRITABLE = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_PERM: "permission is denied",
    sqlite3.SQLITE_BUSY: "another process has locked it",
    sqlite3.SQLITE_LOCKED: "another process has locked it",
}
"""What keeps a sound file from being written, by SQLite's code."""


@contextlib.contextmanager
def translated(source: object) -> Iterator[None]:
    """Raises what SQLite reports as a `DiskError` or a `DamagedFileError`."""
    try:
        yield
    except sqlite3.Error as error:
        reason = _UNWRITABLE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
        if reason is not None:
            raise DiskError(source, reason) from error
        raise damaged(source, error) from None
    except (UnicodeDecodeError, OverflowError) as error:
        raise damaged(source, error) from None


@contextlib.contextmanager
def snapshot(db: sqlite3.Connection, source: object) -> Iterator[None]:
    """Reads the file as it is at one moment, whoever writes meanwhile."""
    own = not db.in_transaction
    with translated(source):
        try:
            if own:
                db.execute("BEGIN")
            yield
        finally:
            if own and db.in_transaction:
                db.execute("ROLLBACK")


def opened(source: str, **settings: Any) -> sqlite3.Connection:
    """A connection to a file or, with `uri`, to an address; without implicit transactions."""
    with translated(source):
        db = sqlite3.connect(source, isolation_level=None, **settings)
        for name, value in (("recursive_triggers", "ON"), ("cell_size_check", "ON"), ("trusted_schema", "OFF")):
            db.execute(f"PRAGMA {name} = {value}")  # these do not read the file
    return db


def create(db: sqlite3.Connection, table: str, columns: str) -> None:
    """Creates a table whose records have a checksum, unless it exists."""
    db.execute(f"CREATE TABLE IF NOT EXISTS {_SUMS} (name TEXT PRIMARY KEY, records INTEGER, total INTEGER)")
    db.execute(f"CREATE TABLE IF NOT EXISTS {table} (checksum INTEGER NOT NULL, {columns})")
    db.execute(f"INSERT OR IGNORE INTO {_SUMS} VALUES (?, 0, 0)", [table])
    for event, count, old_or_new in (("INSERT", "+ 1", ["NEW"]), ("DELETE", "- 1", ["OLD"]), ("UPDATE", "", _BOTH)):
        total = "total"
        for row in old_or_new:  # exclusive or, which SQLite does not have
            total = f"((({total}) | {row}.checksum) & ~(({total}) & {row}.checksum))"
        change = f"UPDATE {_SUMS} SET records = records {count}, total = {total} WHERE name = '{table}'"
        name = f"{table}_{event.lower()}"
        db.execute(f"CREATE TRIGGER IF NOT EXISTS {name} AFTER {event} ON {table} BEGIN {change}; END")


_BOTH = ["OLD", "NEW"]


def schema(db: sqlite3.Connection) -> str:
    """A checksum of all tables and triggers."""
    declared = db.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()
    return checksum(repr(declared).encode()).hex()


def exists(db: sqlite3.Connection, table: str) -> bool:
    """Whether there is such a table."""
    return db.execute("SELECT name FROM sqlite_master WHERE name = ?", [table]).fetchone() is not None


def insert(db: sqlite3.Connection, table: str, rows: Iterable[Sequence[Any]]) -> None:
    """Writes records, with a value for every column, in place of those with the same key."""
    sealed = [(sum_of(table, row), *row) for row in rows]
    if sealed:
        db.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(sealed[0]))})", sealed)


def append(db: sqlite3.Connection, table: str, *values: Any) -> None:
    """Writes one record at the next place of a table."""
    (place,) = db.execute(f"SELECT ifnull(max(place), -1) + 1 FROM {table}").fetchone()
    insert(db, table, [(place, *values)])


def records(db: sqlite3.Connection, source: object, table: str, order: str) -> list[tuple[Any, ...]]:
    """All records of a table in the order of a column, each as it was written; otherwise a `DamagedFileError`."""
    with snapshot(db, source):
        found = db.execute(f"SELECT * FROM {table} ORDER BY {order}").fetchall()
        sums = db.execute(f"SELECT records, total FROM {_SUMS} WHERE name = ?", [table]).fetchall()
    total = 0
    for kept, *row in found:
        if kept != sum_of(table, row):
            raise damaged(source, f"a record of {table} has another checksum")
        total ^= kept
    if sums != [(len(found), total)]:
        raise damaged(source, f"records of {table} are missing or repeated")
    return [tuple(row) for _, *row in found]


def sum_of(table: str, row: Sequence[Any]) -> int:
    """The checksum of a record: its table, and the kinds and values of its columns, as SQLite gives them back."""
    parts = [table.encode()]
    for value in row:
        kind = "number" if isinstance(value, int | float) else type(value).__name__
        data = value if isinstance(value, bytes) else _text(value).encode("utf-8", "surrogatepass")
        parts += [f"{kind} {len(data)} ".encode(), data]
    return int.from_bytes(checksum(b"".join(parts))[:8], "little", signed=True)


def _text(value: Any) -> str:
    """A value as text; SQLite keeps whole floats as integers, truth values as numbers, and no negative zero."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return repr(int(value)) if isinstance(value, bool) else repr(value)


def damaged(source: object, why: object) -> DamagedFileError:
    """The error for a ledger that does not hold what was written to it."""
    return DamagedFileError(
        f"{source} is not a partita ledger, or it is corrupt ({why}): use a copy of it, or another ledger."
    )
