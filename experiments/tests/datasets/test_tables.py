"""Tables read from files of the form that UCI has."""

import io
import zipfile

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from partita import InputError
from partita.data import preprocess
from partita_experiments import datasets
from partita_experiments.datasets import uci


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """A directory for the user's own files, and an empty cache."""
    monkeypatch.setenv("PARTITA_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PARTITA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "data"


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def archive(members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as contents:
        for name, content in members.items():
            contents.writestr(name, content)
    return file.getvalue()


def made_up(columns, rows, random):
    """Rows of numbers that tell where they stand, and categories drawn from the declared levels."""
    return [
        [
            str(i * 100 + j) if levels is None else str(random.choice(levels))
            for j, levels in enumerate(columns.values())
        ]
        for i in range(rows)
    ]


BANK_ROWS = [
    [*row, "yes" if i % 5 == 0 else "no"]
    for i, row in enumerate(made_up(uci.BANK_COLUMNS, 50, np.random.default_rng(0)))
]
CREDIT_ROWS = [
    [*row, "-" if i % 2 == 0 else "+"]
    for i, row in enumerate(made_up(uci.CREDIT_COLUMNS, 40, np.random.default_rng(1)))
]


def bank_csv(rows=BANK_ROWS):
    quoted = [[field if field.isdigit() else f'"{field}"' for field in row] for row in rows]
    header = [f'"{name}"' for name in (*uci.BANK_COLUMNS, "y")]
    return "".join(";".join(line) + "\n" for line in [header, *quoted])


def crx(rows=CREDIT_ROWS):
    return "".join(",".join(row) + "\n" for row in rows) + "\n"


def expected_rows(rows):
    """The paper's division: the first 80% of the permutation that seed 0 gives."""
    order = np.random.RandomState(0).permutation(len(rows))
    cut = int(0.8 * len(rows))
    return [rows[i] for i in order[:cut]], [rows[i] for i in order[cut:]]


def check(frames, rows, columns, positive):
    for part, expected in zip(frames, expected_rows(rows), strict=True):
        assert part.size == len(expected)
        np.testing.assert_array_equal(part.y, [float(row[-1] == positive) for row in expected])
        assert tuple(part.columns) == tuple(columns)
        for j, (name, levels) in enumerate(columns.items()):
            values = [row[j] for row in expected]
            np.testing.assert_array_equal(part.columns[name], values if levels else np.array(values, float))
            assert part.levels.get(name) == levels


@pytest.mark.parametrize(
    "place", ["data/bank/bank.zip", "data/bank/bank+marketing.zip", "cache/bank/bank+marketing.zip"]
)
def test_bank_from_its_archive_or_from_ucis(tmp_path, place):
    inner = archive({"bank.csv": "nothing", "bank-full.csv": bank_csv()})
    outer = archive({"bank-additional.zip": archive({"bank-additional.csv": "other"}), "bank.zip": inner})
    write(tmp_path / place, outer if "marketing" in place else inner)
    frames = datasets.bank_frames()
    check(frames, BANK_ROWS, uci.BANK_COLUMNS, "yes")
    assert datasets.bank().train.x.shape == (40, 52)
    assert datasets.frames("bank").train.size == 40


@pytest.mark.parametrize("place", ["data/credit/crx.data", "cache/credit/credit+approval.zip"])
def test_credit_drops_rows_with_a_missing_value(tmp_path, place):
    rows = [row.copy() for row in CREDIT_ROWS]
    rows[3][0], rows[17][13] = "?", "?"
    write(tmp_path / place, crx(rows) if place.endswith("data") else archive({"crx.data": crx(rows)}))
    check(datasets.credit_frames(), [row for row in rows if "?" not in row], uci.CREDIT_COLUMNS, "-")
    assert datasets.credit().test.x.shape == (8, 47)


def test_an_unknown_table_is_named():
    with pytest.raises(InputError, match="'wine': choose one of adult, bank, credit"):
        datasets.frames("wine")


def changed(rows, row, column, value):
    rows = [fields.copy() for fields in rows]
    rows[row][column] = value
    return rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (crx(changed(CREDIT_ROWS, 4, 1, "old")), "Line 5 of crx.data has 'old' for A2, which is not a number"),
        (crx(changed(CREDIT_ROWS, 4, 1, "nan")), "Line 5 of crx.data has 'nan' for A2, which is not a number"),
        (crx(changed(CREDIT_ROWS, 6, 3, "t")), "Line 7 of crx.data has 't' for A4 instead of one of l, u, y"),
        (crx(changed(CREDIT_ROWS, 6, 15, "0")), "Line 7 of crx.data has '0' for the response"),
        (crx([*CREDIT_ROWS[:9], CREDIT_ROWS[9][1:]]), "Line 10 of crx.data has 15 fields instead of 16"),
        (b"\xff\xfe", "crx.data is not a table of text"),
        (b"", "crx.data is empty"),
    ],
)
def test_a_damaged_table_is_refused_with_its_line(data, content, message):
    write(data / "credit" / "crx.data", content)
    with pytest.raises(InputError, match=message):
        datasets.credit_frames()


WHOLE = archive({"bank-full.csv": bank_csv()})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (WHOLE[: len(WHOLE) // 2], "damaged"),
        (WHOLE.replace(b"management", b"managemant"), "damaged"),
        (archive({"bank.csv": bank_csv()}), "does not contain bank-full.csv"),
        (archive({"bank-full.csv": bank_csv().replace('"job"', '"work"')}), "does not name Bank's columns"),
        (
            archive({"bank-full.csv": bank_csv([row[:-1] for row in BANK_ROWS])}),
            "Line 2 of bank.zip, bank-full.csv has 16",
        ),
    ],
)
def test_a_damaged_archive_is_refused(data, content, message):
    write(data / "bank" / "bank.zip", content)
    with pytest.raises(InputError, match=message):
        datasets.bank_frames()


HOSPITALS = {"cleveland": 60, "hungarian": 50, "switzerland": 20, "va": 40}


def heart_file(hospital, rows):
    """Rows in the form of the hospital: Cleveland writes 2.0 for 2; the last columns are hardly ever recorded."""
    random = np.random.default_rng(rows)
    lines = []
    for i in range(rows):
        positive = i == 0 if hospital == "switzerland" else random.random() < 0.5
        fields = [30 + i, i % 2, random.integers(1, 5), 120, 200 + i, 0, random.integers(0, 3), 150, 1, 0.5]
        texts = [f"{value:.1f}" if hospital == "cleveland" else f"{value:g}" for value in fields]
        lines.append([*texts, "?", "?", "?", str(random.integers(1, 5) if positive else 0)])
    lines.append([*lines[0][:3], "?", *lines[0][4:]])
    return "".join(",".join(line) + "\n" for line in lines)


@pytest.mark.parametrize("place", ["data", "cache"])
def test_heart_disease_in_four_hospitals(tmp_path, place):
    files = {f"processed.{hospital}.data": heart_file(hospital, rows) for hospital, rows in HOSPITALS.items()}
    if place == "data":
        for name, content in files.items():
            write(tmp_path / "data" / "heart" / name, content)
    else:
        write(tmp_path / "cache" / "heart" / "heart+disease.zip", archive(files))
    frames = datasets.heart_frames()
    assert list(frames) == list(HOSPITALS)
    for hospital, rows in HOSPITALS.items():
        train, test = frames[hospital]
        lines = [line.split(",") for line in files[f"processed.{hospital}.data"].splitlines()]
        diseased = np.array([line[-1] != "0" for line in lines[:rows]])
        # FLamby's call; Switzerland's classes are too small to be stratified.
        expected = train_test_split(
            np.arange(rows),
            test_size=1.0 - 0.66,
            train_size=0.66,
            random_state=43,
            shuffle=True,
            stratify=None if hospital == "switzerland" else diseased,
        )
        # The row with a missing value is gone, and ages tell which row is which.
        for part, own in zip((train, test), expected, strict=True):
            own = np.sort(own)
            np.testing.assert_array_equal(part.columns["age"], 30 + own)
            np.testing.assert_array_equal(part.y, diseased[own])
            np.testing.assert_array_equal(part.columns["cp"].astype(float), [float(lines[i][2]) for i in own])
    encoding = preprocess.federated([part.train for part in frames.values()])
    assert len(encoding.names) == 1 + 8 + 4 + 3
    for part in frames.values():
        assert np.isfinite(encoding.encode(part.test).x).all()


def test_a_code_the_hospitals_do_not_use_is_refused(data):
    content = heart_file("cleveland", 10).splitlines()
    content[4] = ",".join([*content[4].split(",")[:2], "7.0", *content[4].split(",")[3:]])
    write(data / "heart" / "processed.cleveland.data", "\n".join(content))
    with pytest.raises(
        InputError, match=r"Line 5 of processed.cleveland.data has '7' for cp instead of one of 1, 2, 3, 4"
    ):
        datasets.heart_frames()
