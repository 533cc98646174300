"""PhysioNet's challenge of 2012: who dies in hospital, from the first 48 hours in intensive care?"""

import csv
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from partita.data.frame import Frame, Frames
from partita.errors import InputError
from partita_experiments.datasets.extracted import StaySeries, cached_frame, feature_frame, with_progress
from partita_experiments.datasets.fetch import Remote, fetch, find

VARIABLES = (
    "Albumin", "ALP", "ALT", "AST", "Bilirubin", "BUN", "Cholesterol", "Creatinine", "DiasABP", "FiO2", "GCS",
    "Glucose", "HCO3", "HCT", "HR", "K", "Lactate", "MAP", "MechVent", "Mg", "Na", "NIDiasABP", "NIMAP", "NISysABP",
    "PaCO2", "PaO2", "pH", "Platelets", "RespRate", "SaO2", "SysABP", "Temp", "TroponinI", "TroponinT", "Urine", "WBC",
    "Weight",
)  # fmt: skip
DESCRIPTORS = ("RecordID", "Age", "Gender", "Height", "ICUType")

_FOLDER = "physionet2012"
_DIGESTS = {
    "set-a.tar.gz": "8cb250f179cd0952b4b9ebcf8954b63d70383131670fac1cfee13deaa13ca920",
    "set-b.tar.gz": "b1637a2a423a8e76f8f087896cfc5fdf28f88519e1f4e874fbda69b2a64dac30",
    "Outcomes-a.txt": "2613ea60ccda29f87571a7d6b09ad130858a8ccd66325bd073365925026883c2",
    "Outcomes-b.txt": "1305f29734da374a809483229a99f33a9230aa8d4fa74b1a2d6ad788136423d5",
}
_HEADER = b"Time,Parameter,Value"
_DESCRIPTOR = -1
_CODES = {name.encode(): code for code, name in enumerate(VARIABLES)} | dict.fromkeys(
    (name.encode() for name in DESCRIPTORS), _DESCRIPTOR
)
_MISSING = -1


def physionet_frames() -> Frames:
    """The challenge's set a to train on and its set b to test with: 4,000 stays each, 37 × 42 features.

    The 37 variables are all that are measured over time; Weight, given at admission and again later, is one of them.
    The other descriptors of a patient (age, gender, height, type of unit) are left out. A value of −1 is a missing one.
    Records are in the order of the outcomes.

    `Outcomes-a.txt`, and beside it the directory `set-a`, or `set-a.zip` or `set-a.tar.gz`, are looked for under
    `$PARTITA_DATA/physionet2012` and downloaded if they are not there; so for b. Source: Silva et al. (2012),
    physionet.org/content/challenge-2012, Open Data Commons Attribution License.
    """
    return Frames(_part("a"), _part("b"))


def _part(part: str) -> Frame:
    outcomes = _fetched(f"Outcomes-{part}.txt")
    directory = outcomes.parent / f"set-{part}"
    if directory.is_dir():
        records = directory
        inputs = sorted(directory.glob("*.txt"))
    else:
        records = find(_FOLDER, f"set-{part}.zip") or _fetched(f"set-{part}.tar.gz")
        inputs = [records]
    return cached_frame(_FOLDER, f"features-{part}", [outcomes, *inputs], lambda: _extract(part, outcomes, records))


def _fetched(name: str) -> Path:
    return fetch(Remote(_FOLDER, name, f"https://physionet.org/files/challenge-2012/1.0.0/{name}", _DIGESTS[name]))


def _extract(part: str, outcomes: Path, records: Path) -> Frame:
    deaths = _deaths(outcomes)
    texts = _texts(records)
    for record in deaths.keys() ^ texts.keys():
        has, lacks = (outcomes, records) if record in deaths else (records, outcomes)
        raise InputError(
            f"Record {record} is in {has} but not in {lacks}: fetch both again, they must belong together."
        )
    stays = (
        _measurements(record, texts[record]) for record in with_progress(list(deaths), f"PhysioNet 2012, set {part}")
    )
    return feature_frame(stays, VARIABLES, np.array(list(deaths.values())))


def _deaths(path: Path) -> dict[int, float]:
    """1 for a death in hospital and 0 otherwise, by record."""
    deaths: dict[int, float] = {}
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        reader = csv.DictReader(file)
        for row in reader:
            try:
                record, death = int(row["RecordID"]), int(row["In-hospital_death"])
            except (KeyError, TypeError, ValueError):
                raise InputError(
                    f"Line {reader.line_num} of {path} has no whole number for RecordID or In-hospital_death: "
                    "fetch the file again."
                ) from None
            if death not in (0, 1) or record in deaths:
                raise InputError(
                    f"Line {reader.line_num} of {path} repeats record {record} or has an outcome other than 0 and 1: "
                    "fetch the file again."
                )
            deaths[record] = float(death)
    if not deaths:
        raise InputError(f"{path} holds no outcomes: fetch it again.")
    return deaths


def _texts(path: Path) -> dict[int, bytes]:
    """The contents of the files of a set, by record."""
    try:
        return {int(name[:-4]): text for name, text in _files(path) if name.endswith(".txt") and name[:-4].isdigit()}
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{path} is damaged ({error}): remove it or fetch it again.") from None


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        yield from ((file.name, file.read_bytes()) for file in path.glob("*.txt"))
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            yield from ((Path(name).name, archive.read(name)) for name in archive.namelist())
    else:
        with tarfile.open(path, "r:gz") as tape:
            for member in tape:
                file = tape.extractfile(member)
                if file:
                    yield Path(member.name).name, file.read()


def _measurements(record: int, text: bytes) -> StaySeries:
    lines = text.split()
    if len(lines) < 2 or lines[0] != _HEADER:
        raise InputError(f"Record {record} is not a table of {_HEADER.decode()}: fetch the set again.")
    try:
        return _parsed(lines[1:])
    except (KeyError, ValueError):
        culprit = next(line for line in lines[1:] if not _readable(line)).decode(errors="replace")
        raise InputError(
            f"Record {record} has the line {culprit!r}, which is not hh:mm, a variable of the challenge and a number: "
            "fetch the set again."
        ) from None


def _parsed(lines: list[bytes]) -> StaySeries:
    """The measurements on lines such as `07:35,HR,73`, without descriptors and missing values."""
    fields = b",".join(lines).split(b",")
    if len(fields) != 3 * len(lines):
        raise ValueError
    variable = np.array([_CODES[name] for name in fields[1::3]])
    value = np.array(fields[2::3]).astype(float)
    time = _hours(np.array(fields[0::3]))
    if not np.isfinite(value).all():
        raise ValueError
    present = (variable != _DESCRIPTOR) & (value != _MISSING)
    return StaySeries(variable[present], time[present], value[present])


def _hours(clock: np.ndarray) -> np.ndarray:
    """Hours from texts hh:mm."""
    if clock.dtype.itemsize != len("hh:mm"):
        raise ValueError
    digits = clock.view(np.uint8).reshape(-1, 5) - np.uint8(ord("0"))
    if (digits > [9, 9, 10, 5, 9]).any() or (digits[:, 2] != ord(":") - ord("0")).any():
        raise ValueError
    return digits @ np.array([10, 1, 0, 10 / 60, 1 / 60])


def _readable(line: bytes) -> bool:
    try:
        _parsed([line])
    except (KeyError, ValueError):
        return False
    return True
