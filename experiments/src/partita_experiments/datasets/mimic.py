"""MIMIC-III: who dies in hospital, from the first 48 hours in intensive care? The user's own copy is read."""

import csv
import os
from pathlib import Path

import numpy as np

from partita.data.frame import Frame, Frames
from partita.errors import InputError
from partita_experiments.datasets.extracted import StaySeries, cached_frame, feature_frame, with_progress
from partita_experiments.datasets.fetch import find

VARIABLES = (
    "Capillary refill rate",
    "Diastolic blood pressure",
    "Fraction inspired oxygen",
    "Glascow coma scale eye opening",
    "Glascow coma scale motor response",
    "Glascow coma scale total",
    "Glascow coma scale verbal response",
    "Glucose",
    "Heart Rate",
    "Height",
    "Mean blood pressure",
    "Oxygen saturation",
    "Respiratory rate",
    "Systolic blood pressure",
    "Temperature",
    "Weight",
    "pH",
)
# Scales and what their texts stand for, as the benchmark reads them; "None" is 0 although that scale begins with 1.
PRIOR_SCALES = {
    "Capillary refill rate": {"0.0": 0, "1.0": 1},
    "Glascow coma scale eye opening": {
        "None": 0,
        "1 No Response": 1,
        "2 To pain": 2,
        "To Pain": 2,
        "3 To speech": 3,
        "To Speech": 3,
        "4 Spontaneously": 4,
        "Spontaneously": 4,
    },
    "Glascow coma scale motor response": {
        "1 No Response": 1,
        "No response": 1,
        "2 Abnorm extensn": 2,
        "Abnormal extension": 2,
        "3 Abnorm flexion": 3,
        "Abnormal Flexion": 3,
        "4 Flex-withdraws": 4,
        "Flex-withdraws": 4,
        "5 Localizes Pain": 5,
        "Localizes Pain": 5,
        "6 Obeys Commands": 6,
        "Obeys Commands": 6,
    },
    "Glascow coma scale total": {str(total): total for total in range(3, 16)},
    "Glascow coma scale verbal response": {
        "1 No Response": 1,
        "No Response": 1,
        "No Response-ETT": 1,
        "1.0 ET/Trach": 1,
        "2 Incomp sounds": 2,
        "Incomprehensible sounds": 2,
        "3 Inapprop words": 3,
        "Inappropriate Words": 3,
        "4 Confused": 4,
        "Confused": 4,
        "5 Oriented": 5,
        "Oriented": 5,
    },
}
HOURS = 48.0
_TOLERANCE = 1e-6
_FOLDER = "in-hospital-mortality"


def mimic_frames() -> Frames:
    """In-hospital mortality in MIMIC-III as the benchmark of Harutyunyan et al. (2019) poses it: 17 × 42 features.

    Reads what the benchmark's `create_in_hospital_mortality` wrote: `train` and `test`, each with a `listfile.csv` and
    a file of measurements for each stay (17,903 and 3,236 of them), under `$PARTITA_DATA/mimic3/in-hospital-mortality`
    or `$PARTITA_DATA/in-hospital-mortality`. Rows are in the order of the lists.
    """
    return Frames(_part("train"), _part("test"))


def _part(part: str) -> Frame:
    listfile = find(f"mimic3/{_FOLDER}/{part}", "listfile.csv") or find(f"{_FOLDER}/{part}", "listfile.csv")
    if listfile is None:
        raise InputError(
            "MIMIC-III needs credentials from physionet.org and cannot be downloaded: prepare it with "
            "github.com/YerevaNN/mimic3-benchmarks and put its in-hospital-mortality (with train and test, each with a "
            f"listfile.csv) at $PARTITA_DATA/mimic3/{_FOLDER}; {part}/listfile.csv was not found."
        )
    deaths = _deaths(listfile)
    paths = [listfile.parent / stay for stay in deaths]
    return cached_frame(
        "mimic3",
        f"features-{part}",
        [listfile, *paths],
        lambda: feature_frame(
            (_measurements(path) for path in with_progress(paths, f"MIMIC-III, {part}")),
            VARIABLES,
            np.array(list(deaths.values())),
        ),
    )


def _deaths(listfile: Path) -> dict[str, float]:
    """1 for a death in hospital and 0 otherwise, by the name of the stay's file."""
    deaths: dict[str, float] = {}
    there = set(os.listdir(listfile.parent))
    with listfile.open(newline="", encoding="utf-8", errors="replace") as file:
        reader = csv.DictReader(file)
        for column in ("stay", "y_true"):
            if column not in (reader.fieldnames or ()):
                raise InputError(f"{listfile} has no column {column!r}: its first line must be stay,y_true.")
        for row in reader:
            stay, death = row["stay"], row["y_true"]
            if death not in ("0", "1"):
                raise InputError(f"Line {reader.line_num} of {listfile} has y_true {death!r}: it must be 0 or 1.")
            if stay in deaths:
                raise InputError(f"Line {reader.line_num} of {listfile} repeats {stay!r}: remove one of the lines.")
            if stay not in there:
                raise InputError(f"{listfile} names {stay!r}, which is not beside it: put the file there.")
            deaths[stay] = float(death)
    if not deaths:
        raise InputError(f"{listfile} names no stays: prepare it again.")
    return deaths


def _measurements(path: Path) -> StaySeries:
    """What was measured in the first 48 hours."""
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        header, *rows = [row for row in csv.reader(file) if row] or [[]]
    places = {name.strip().lower(): place for place, name in enumerate(header)}
    for column in ("Hours", *VARIABLES):
        if column.lower() not in places:
            raise InputError(f"{path} has no column {column!r}: prepare the file again with the benchmark.")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise InputError(f"Row {number} of {path} has {len(row)} fields instead of {len(header)}: mend the row.")
    cells = np.array(rows, dtype=str).reshape(len(rows), len(header)).T
    hours = _numbers(path, "Hours", cells[places["hours"]])
    early = (hours > -_TOLERANCE) & (hours < HOURS + _TOLERANCE)
    variables, times, values = [], [], []
    for code, variable in enumerate(VARIABLES):
        texts = cells[places[variable.lower()]]
        present = np.flatnonzero((texts != "") & early)
        if present.size:
            variables.append(np.full(len(present), code))
            times.append(hours[present])
            values.append(_numbers(path, variable, texts[present]))
    if not values:
        return StaySeries(np.zeros(0, dtype=int), np.zeros(0), np.zeros(0))
    return StaySeries(np.concatenate(variables), np.concatenate(times), np.concatenate(values))


def _numbers(path: Path, column: str, texts: np.ndarray) -> np.ndarray:
    """The numbers in a column, with texts of a scale converted."""
    try:
        return _parsed(column, texts.tolist())
    except ValueError:
        culprit = next(text for text in texts.tolist() if not _readable(column, text))
        kind = "a value of the scale" if column in PRIOR_SCALES else "a number"
        raise InputError(f"{path} has {culprit!r} in the column {column!r}, which is not {kind}: mend it.") from None


def _parsed(column: str, texts: list[str]) -> np.ndarray:
    """Numbers in a column without a scale; in one with a scale, its texts or its numbers however written."""
    scale = PRIOR_SCALES.get(column)
    if scale is None:
        numbers = np.array(texts, dtype=float)
        known = np.isfinite(numbers)
    else:
        numbers = np.array([scale.get(text, text) for text in texts], dtype=float)
        known = np.isin(numbers, list(scale.values()))
    if not known.all():
        raise ValueError
    return numbers


def _readable(column: str, text: str) -> bool:
    try:
        _parsed(column, [text])
    except ValueError:
        return False
    return True
