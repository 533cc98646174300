"""Tables of the UCI Machine Learning Repository: Bank and Credit, from the user or downloaded, and Adult."""

import csv
import io
import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from partita.data.datasets import Dataset, adult_frames, encoded
from partita.data.frame import Frame, Frames, divided
from partita.errors import InputError, unknown
from partita_experiments.datasets.fetch import Remote, fetch, find

YES_OR_NO = ("no", "yes")

BANK = Remote(
    "bank",
    "bank+marketing.zip",
    "https://archive.ics.uci.edu/static/public/222/bank+marketing.zip",
    "e0bf5f5de5b846e2f18e9d90606637267d46dfa260e0f17bb12e605db5efbeb4",
)
BANK_COLUMNS: Mapping[str, tuple[str, ...] | None] = {
    "age": None,
    "job": (
        "admin.",
        "blue-collar",
        "entrepreneur",
        "housemaid",
        "management",
        "retired",
        "self-employed",
        "services",
        "student",
        "technician",
        "unemployed",
        "unknown",
    ),
    "marital": ("divorced", "married", "single"),
    "education": ("primary", "secondary", "tertiary", "unknown"),
    "default": YES_OR_NO,
    "balance": None,
    "housing": YES_OR_NO,
    "loan": YES_OR_NO,
    "contact": ("cellular", "telephone", "unknown"),
    "day": None,
    "month": ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    "duration": None,
    "campaign": None,
    "pdays": None,
    "previous": None,
    "poutcome": ("failure", "other", "success", "unknown"),
}
"""The columns of Bank: None for a number, otherwise the levels."""

CREDIT = Remote(
    "credit",
    "credit+approval.zip",
    "https://archive.ics.uci.edu/static/public/27/credit+approval.zip",
    "e3adfa0387815e3a9d8aaaf7b1cd7365424c83298bca6358bc48e451b4a26dd3",
)
CREDIT_COLUMNS: Mapping[str, tuple[str, ...] | None] = {
    "A1": ("a", "b"),
    "A2": None,
    "A3": None,
    "A4": ("l", "u", "y"),
    "A5": ("g", "gg", "p"),
    "A6": ("aa", "c", "cc", "d", "e", "ff", "i", "j", "k", "m", "q", "r", "w", "x"),
    "A7": ("bb", "dd", "ff", "h", "j", "n", "o", "v", "z"),
    "A8": None,
    "A9": ("f", "t"),
    "A10": ("f", "t"),
    "A11": None,
    "A12": ("f", "t"),
    "A13": ("g", "p", "s"),
    "A14": None,
    "A15": None,
}
"""The columns of Credit, whose names and levels its donors made meaningless."""


class Line(NamedTuple):
    """The fields of a line and where it stands, for errors."""

    where: str
    fields: list[str]


def frames(name: str) -> Frames:
    """The table of this name: "adult", "bank" or "credit"."""
    tables = {"adult": adult_frames, "bank": bank_frames, "credit": credit_frames}
    if name not in tables:
        raise unknown("table", name, tables)
    return tables[name]()


def bank_frames() -> Frames:
    """Bank: does a customer who is called subscribe? 45,211 rows, 16 columns; DOI 10.24432/C5K306, CC BY 4.0.

    Read from `bank/bank.zip` if there is one, otherwise from UCI's archive, which contains it.
    """
    path = find("bank", "bank.zip") or fetch(BANK)
    header, *lines = read_lines(path, "bank-full.csv", (*BANK_COLUMNS, "y"), delimiter=";")
    if header.fields != [*BANK_COLUMNS, "y"]:
        raise InputError(f"{header.where} does not name Bank's columns {', '.join(BANK_COLUMNS)}, y: get a new copy.")
    return divided(parse(lines, BANK_COLUMNS, {"no": 0.0, "yes": 1.0}))


def credit_frames() -> Frames:
    """Credit: is a card refused ("-")? 653 rows without missing values, 15 columns; DOI 10.24432/C5FS30, CC BY 4.0.

    Read from `credit/crx.data` if there is one, otherwise from UCI's archive.
    """
    path = find("credit", "crx.data") or fetch(CREDIT)
    lines = read_lines(path, "crx.data", (*CREDIT_COLUMNS, "A16"))
    complete = [line for line in lines if "?" not in line.fields]
    return divided(parse(complete, CREDIT_COLUMNS, {"+": 0.0, "-": 1.0}))


def bank() -> Dataset:
    """Bank: does a customer who is called subscribe? 45,211 rows, 51 columns, an intercept; see `bank_frames`."""
    return encoded(bank_frames())


def credit() -> Dataset:
    """Credit: is a card refused? 653 rows, 46 columns, an intercept; see `credit_frames`."""
    return encoded(credit_frames())


def read_lines(path: Path, member: str, columns: tuple[str, ...], delimiter: str = ",") -> list[Line]:
    """The lines, but blank ones, of a file or of a member of a .zip, each of which must have a field for every column.

    A member may lie in an archive within the archive.
    """
    name = path.name if path.name == member else f"{path.name}, {member}"
    try:
        content = path.read_bytes()
        if path.suffix == ".zip":
            content = _unpacked(content, member)
        reader = csv.reader(io.StringIO(content.decode()), delimiter=delimiter)
        lines = [Line(f"Line {reader.line_num} of {name}", fields) for fields in reader if fields]
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise InputError(f"The archive {path} is damaged ({error}): delete it and get a new copy.") from None
    except KeyError:
        raise InputError(f"The archive {path} does not contain {member}: delete it and get a new copy.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{name} is not a table of text ({error}): get a new copy.") from None
    if not lines:
        raise InputError(f"{name} is empty: get a new copy.")
    for line in lines:
        if len(line.fields) != len(columns):
            raise InputError(
                f"{line.where} has {len(line.fields)} fields instead of {len(columns)}, {columns[0]} to {columns[-1]}: "
                "get a new copy."
            )
    return lines


def parse(lines: list[Line], columns: Mapping[str, tuple[str, ...] | None], responses: Mapping[str, float]) -> Frame:
    """The frame of the lines, whose last field is the response."""
    values = {
        name: np.array([number(line, name, line.fields[i]) for line in lines])
        if levels is None
        else np.array([_one_of(line, name, line.fields[i], levels) for line in lines], dtype=str)
        for i, (name, levels) in enumerate(columns.items())
    }
    y = [responses[_one_of(line, "the response", line.fields[-1], responses)] for line in lines]
    return Frame.build(values, np.array(y), {name: levels for name, levels in columns.items() if levels is not None})


def number(line: Line, column: str, field: str) -> float:
    """The field as a finite number."""
    try:
        value = float(field)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{line.where} has {field!r} for {column}, which is not a number: get a new copy.")
    return value


def _one_of(line: Line, column: str, field: str, levels: tuple[str, ...] | Mapping[str, float]) -> str:
    if field not in levels:
        raise InputError(f"{line.where} has {field!r} for {column} instead of one of {', '.join(levels)}.")
    return field


def _unpacked(archive: bytes, member: str) -> bytes:
    """The bytes of a member of the archive or of an archive in it; KeyError if there is none of that name."""
    with zipfile.ZipFile(io.BytesIO(archive)) as contents:
        if member in contents.namelist():
            return contents.read(member)
        for name in contents.namelist():
            if name.endswith(".zip"):
                try:
                    return _unpacked(contents.read(name), member)
                except KeyError:
                    continue
    raise KeyError(member)
