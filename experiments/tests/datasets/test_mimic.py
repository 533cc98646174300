import os

import numpy as np
import pytest

from partita.errors import InputError
from partita_experiments.datasets.mimic import PRIOR_SCALES, VARIABLES, mimic_frames
from partita_experiments.datasets.series import Measurements
from support.slow_series import slow

DEATHS = {
    "train": {
        "10017_episode1_timeseries.csv": 1,
        "10004_episode2_timeseries.csv": 0,
        "10004_episode1_timeseries.csv": 0,
    },
    "test": {"20001_episode1_timeseries.csv": 0},
}
VERBAL = VARIABLES.index("Glascow coma scale verbal response")


def made_up(name, rows=30):
    """Hours and cells of a stay; more than half of the cells are blank, and the last hours are beyond 48."""
    rng = np.random.default_rng(list(name.encode()))
    hours = np.sort(rng.integers(0, 48 * 4, rows) / 4)
    hours[-3:] = [48, 48.5, 60]
    cells = np.where(rng.random((rows, 17)) < 0.4, rng.gamma(3, 30, (rows, 17)).round(3).astype(str), "")
    for column, variable in enumerate(VARIABLES):
        if variable in PRIOR_SCALES:
            texts = rng.choice(list(PRIOR_SCALES[variable]), rows)
            cells[:, column] = np.where(cells[:, column] == "", "", texts)
    cells[:, VARIABLES.index("Height")] = ""
    return hours, cells


def text(hours, cells, header=("Hours", *VARIABLES)):
    rows = [header, *([repr(float(hour)), *row] for hour, row in zip(hours, cells, strict=True))]
    return "".join(",".join(row) + "\n" for row in rows)


def write_list(folder, deaths):
    (folder / "listfile.csv").write_text("stay,y_true\n" + "".join(f"{stay},{y}\n" for stay, y in deaths.items()))


def write_tree(root):
    for part, deaths in DEATHS.items():
        folder = root / part
        folder.mkdir(parents=True)
        write_list(folder, deaths)
        for stay in deaths:
            (folder / stay).write_text(text(*made_up(stay)))


@pytest.fixture
def root(tmp_path, monkeypatch):
    """The benchmark's folder, with made-up stays."""
    monkeypatch.setenv("PARTITA_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PARTITA_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "data" / "mimic3" / "in-hospital-mortality"
    write_tree(root)
    return root


def table(frame):
    return np.stack(list(frame.columns.values()), axis=1)


def expected(part):
    """The features by a plain implementation, cell by cell."""
    entries = []
    for row, stay in enumerate(DEATHS[part]):
        hours, cells = made_up(stay)
        for hour, line in zip(hours, cells, strict=True):
            for column, cell in enumerate(line):
                if cell and hour <= 48:
                    scale = PRIOR_SCALES.get(VARIABLES[column])
                    entries.append((row, column, hour, float(scale[cell] if scale else cell)))
    return slow(Measurements(*map(np.array, zip(*entries, strict=True))), len(DEATHS[part]), 17)


def test_the_parts_are_rows_of_714_features_of_the_first_48_hours(root):
    frames = mimic_frames()
    for part, frame in zip(DEATHS, frames, strict=True):
        assert len(frame.columns) == 17 * 42 == 714
        np.testing.assert_array_equal(frame.y, list(DEATHS[part].values()))
        np.testing.assert_allclose(table(frame), expected(part), rtol=1e-9, atol=1e-9)
        assert np.isnan(frame.columns["Height · all · count"]).all()
        assert frame.levels == {}


def test_the_tree_may_lie_directly_under_the_data(root, tmp_path):
    first = mimic_frames()
    root.rename(tmp_path / "data" / "in-hospital-mortality")
    np.testing.assert_array_equal(table(mimic_frames().train), table(first.train))


def test_texts_and_numbers_of_a_scale_are_mixed(root):
    """The benchmark's values: the eye scale's "None" is 0, an intubated patient's verbal response 1."""
    cells = np.full((4, 17), "", dtype="U30")
    cells[:, VERBAL] = ["No Response-ETT", "5 Oriented", "4", "2.0"]
    cells[:3, VARIABLES.index("Glascow coma scale eye opening")] = ["None", "To Pain", "3 To speech"]
    cells[0, VARIABLES.index("Glascow coma scale total")] = "15.0"
    (root / "test" / "20001_episode1_timeseries.csv").write_text(text(range(4), cells))
    columns = mimic_frames().test.columns
    assert columns["Glascow coma scale verbal response · all · mean"] == [3]
    assert columns["Glascow coma scale verbal response · last 10% · mean"] == [2]
    assert columns["Glascow coma scale eye opening · all · min"] == [0]
    assert columns["Glascow coma scale eye opening · all · max"] == [3]
    assert columns["Glascow coma scale total · all · mean"] == [15]


def test_scale_texts_that_begin_with_a_number_have_its_value():
    numbered = [(text, value) for scale in PRIOR_SCALES.values() for text, value in scale.items() if text[0].isdigit()]
    assert len(numbered) == 2 + 4 + 6 + 13 + 6
    assert all(float(text.split()[0]) == value for text, value in numbered)


def test_columns_are_found_by_name(root):
    stay = root / "test" / "20001_episode1_timeseries.csv"
    first = mimic_frames().test
    hours, cells = made_up(stay.name)
    order = np.random.default_rng(0).permutation(17)
    header = ("Hours", *(VARIABLES[column].lower() for column in order), "Comment")
    stay.write_text(text(hours, [[*row, "ignored"] for row in cells[:, order]], header))
    np.testing.assert_array_equal(table(mimic_frames().test), table(first))


def test_a_stay_without_measurements_is_missing_throughout(root):
    (root / "test" / "20001_episode1_timeseries.csv").write_text(text([50.0], [["7"] * 17]))
    (root / "train" / "10004_episode1_timeseries.csv").write_text(text([], []))
    frames = mimic_frames()
    assert np.isnan(table(frames.test)).all()
    assert np.isnan(table(frames.train)).all(axis=1).tolist() == [False, False, True]


def garble(path, keep_time):
    """Other bytes, as many as before."""
    status = path.stat()
    path.write_bytes(b"x" * status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + (0 if keep_time else 1_000_000_000)))


def test_cached_features_are_reused_until_a_stay_changes(root, tmp_path):
    first = mimic_frames()
    assert len(list((tmp_path / "cache" / "mimic3").iterdir())) == 2
    stay = root / "train" / "10004_episode2_timeseries.csv"
    garble(stay, keep_time=True)
    np.testing.assert_array_equal(table(mimic_frames().train), table(first.train))
    garble(stay, keep_time=False)
    with pytest.raises(InputError, match=r"10004_episode2_timeseries\.csv has no column 'Hours'"):
        mimic_frames()


def test_a_changed_list_invalidates_the_cache(root):
    mimic_frames()
    write_list(root / "train", dict(list(DEATHS["train"].items())[::-1]))
    np.testing.assert_array_equal(mimic_frames().train.y, [0, 0, 1])


@pytest.mark.parametrize("part", ["train", "test"])
def test_without_a_copy_the_error_says_what_to_put_where(root, part):
    (root / part / "listfile.csv").unlink()
    with pytest.raises(InputError, match=rf"credentials.*\$PARTITA_DATA/mimic3/in-hospital-mortality; {part}/listfile"):
        mimic_frames()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("name,y_true\n", r"listfile\.csv has no column 'stay'"),
        ("stay\n", r"listfile\.csv has no column 'y_true'"),
        ("", r"listfile\.csv has no column 'stay'"),
        ("stay,y_true\n", "names no stays"),
        ("stay,y_true\n20001_episode1_timeseries.csv,yes\n", "Line 2 of .* has y_true 'yes'"),
        ("stay,y_true\n20001_episode1_timeseries.csv\n", "Line 2 of .* has y_true None"),
        ("stay,y_true\n" + "20001_episode1_timeseries.csv,1\n" * 2, "Line 3 of .* repeats '20001_episode1"),
        ("stay,y_true\n3_episode1_timeseries.csv,1\n", "names '3_episode1_timeseries.csv', which is not beside it"),
    ],
)
def test_an_invalid_list_is_refused(root, lines, message):
    (root / "test" / "listfile.csv").write_text(lines)
    with pytest.raises(InputError, match=message):
        mimic_frames()


@pytest.mark.parametrize(
    ("variable", "cell", "kind"),
    [
        ("Glascow coma scale verbal response", "Singing", "a value of the scale"),
        ("Glascow coma scale verbal response", "6", "a value of the scale"),
        ("Glascow coma scale eye opening", "2.5", "a value of the scale"),
        ("Glascow coma scale total", "16", "a value of the scale"),
        ("Capillary refill rate", "nan", "a value of the scale"),
        ("Heart Rate", "fast", "a number"),
        ("pH", "inf", "a number"),
    ],
)
def test_a_cell_that_cannot_be_read_is_named_with_file_and_column(root, variable, cell, kind):
    stay = root / "train" / "10004_episode1_timeseries.csv"
    hours, cells = made_up(stay.name)
    cells[7, VARIABLES.index(variable)] = cell
    stay.write_text(text(hours, cells))
    message = f"10004_episode1_timeseries.csv has '{cell}' in the column '{variable}', which is not {kind}"
    with pytest.raises(InputError, match=message):
        mimic_frames()


def test_an_hour_that_cannot_be_read_is_named(root):
    stay = root / "train" / "10004_episode1_timeseries.csv"
    stay.write_text(text(*made_up(stay.name)).replace("\n48.0,", "\nlate,"))
    with pytest.raises(InputError, match=r"10004_episode1_timeseries\.csv has 'late' in the column 'Hours'"):
        mimic_frames()


@pytest.mark.parametrize("column", ["Hours", "Heart Rate"])
def test_a_missing_column_is_named(root, column):
    stay = root / "test" / "20001_episode1_timeseries.csv"
    stay.write_text(stay.read_text().replace(column, "Something else", 1))
    with pytest.raises(InputError, match=f"20001_episode1_timeseries.csv has no column '{column}'"):
        mimic_frames()


def test_a_row_of_another_length_is_named(root):
    stay = root / "test" / "20001_episode1_timeseries.csv"
    stay.write_text(stay.read_text() + "47.5,1\n")
    with pytest.raises(InputError, match=r"Row 32 of .*20001_episode1_timeseries\.csv has 2 fields instead of 18"):
        mimic_frames()
