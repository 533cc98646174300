"""Heart Disease (UCI): four hospitals with their own rows, selected and divided as FLamby does."""

from collections.abc import Mapping

import numpy as np

from partita.data.frame import Frame, Frames
from partita_experiments.datasets.fetch import Remote, fetch, find
from partita_experiments.datasets.uci import Line, number, parse, read_lines

HEART = Remote(
    "heart",
    "heart+disease.zip",
    "https://archive.ics.uci.edu/static/public/45/heart+disease.zip",
    "b17cd273da9ce1caa4710fce80227ea454d4dbf9fcbc8e6a9121672751563adc",
)
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS: Mapping[str, tuple[str, ...] | None] = {
    "age": None,
    "sex": None,
    "cp": ("1", "2", "3", "4"),
    "trestbps": None,
    "chol": None,
    "fbs": None,
    "restecg": ("0", "1", "2"),
    "thalach": None,
    "exang": None,
    "oldpeak": None,
}
"""The columns that are kept: kind of chest pain and resting ECG are categories."""

DROPPED = ("slope", "ca", "thal")
"""Columns that most hospitals hardly ever recorded."""


def heart_frames() -> dict[str, Frames]:
    """Does a patient have heart disease? 303, 261, 46 and 130 rows in four hospitals; DOI 10.24432/C52P4X, CC BY 4.0.

    As in FLamby, three columns are dropped, then rows with a missing value, and each hospital's rows are divided at
    random, 66 to 34, stratified by response where both classes have three rows. Rows keep the file's order. FLamby's
    16 inputs have the levels of resting ECG twice, as numbers and, from files with gaps, as texts; here they are one.
    """
    return {name: _divided(hospital(name)) for name in HOSPITALS}


def hospital(name: str) -> Frame:
    """The rows of a hospital, undivided."""
    member = f"processed.{name}.data"
    lines = read_lines(find("heart", member) or fetch(HEART), member, (*COLUMNS, *DROPPED, "num"))
    kept = [Line(line.where, [*line.fields[: len(COLUMNS)], line.fields[-1]]) for line in lines]
    complete = [_codes(line) for line in kept if "?" not in line.fields]
    return parse(complete, COLUMNS, {"0": 0.0, "1": 1.0, "2": 1.0, "3": 1.0, "4": 1.0})


def _codes(line: Line) -> Line:
    """The line with its categories written one way: some files have 2.0 for 2."""
    categorical = [*(levels is not None for levels in COLUMNS.values()), True]
    names = [*COLUMNS, "num"]
    fields = [
        f"{number(line, name, field):g}" if is_code else field
        for name, field, is_code in zip(names, line.fields, categorical, strict=True)
    ]
    return Line(line.where, fields)


def _divided(frame: Frame) -> Frames:
    from sklearn.model_selection import train_test_split  # takes long to import

    classes, sizes = np.unique(frame.y, return_counts=True)
    stratify = frame.y if len(classes) > 1 and sizes.min() > 2 else None
    train, test = train_test_split(
        np.arange(frame.size), train_size=0.66, test_size=1 - 0.66, random_state=43, stratify=stratify
    )
    return Frames(frame.rows(np.sort(train)), frame.rows(np.sort(test)))
