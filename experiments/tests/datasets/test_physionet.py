import io
import os
import shutil
import sys
import tarfile
import zipfile

import numpy as np
import pytest

from partita.errors import InputError
from partita_experiments.datasets import physionet
from partita_experiments.datasets.physionet import VARIABLES, physionet_frames
from partita_experiments.datasets.series import Measurements
from support.slow_series import slow

DESCRIPTORS = "00:00,RecordID,{}\n00:00,Age,54\n00:00,Gender,0\n00:00,Height,-1\n00:00,ICUType,4\n"
OUTCOMES = "RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death\n"
# Out of order, so that rows can be seen to follow the outcomes.
DEATHS = {"a": {132541: 0, 132539: 1, 132540: 0}, "b": {142675: 1, 142673: 0}}


def lines(record):
    """Made-up measurements of a stay: times sorted, with ties."""
    rng = np.random.default_rng(record)
    minutes = np.sort(rng.integers(0, 48 * 60 // 20, 60) * 20)
    variables = rng.choice(["HR", "Temp", "Urine", "pH"], 60, p=[0.6, 0.2, 0.18, 0.02])
    return [
        f"{m // 60:02d}:{m % 60:02d},{v},{x:.4g}"
        for m, v, x in zip(minutes, variables, rng.gamma(4, 20, 60), strict=True)
    ]


def records(part):
    weights = {record: "00:00,Weight,-1\n" if record % 2 else "00:00,Weight,76.5\n" for record in DEATHS[part]}
    return {
        record: "Time,Parameter,Value\n"
        + DESCRIPTORS.format(record)
        + weights[record]
        + "\n".join(lines(record))
        + "\n"
        for record in DEATHS[part]
    }


def write_zip(folder, part, texts):
    with zipfile.ZipFile(folder / f"set-{part}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir(f"set-{part}")
        for record, text in texts.items():
            archive.writestr(f"set-{part}/{record}.txt", text)


def write_tar(folder, part, texts):
    with tarfile.open(folder / f"set-{part}.tar.gz", "w:gz") as archive:
        directory = tarfile.TarInfo(f"set-{part}")
        directory.type = tarfile.DIRTYPE
        archive.addfile(directory)
        for record, text in texts.items():
            entry = tarfile.TarInfo(f"set-{part}/{record}.txt")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


def write_directory(folder, part, texts):
    (folder / f"set-{part}").mkdir(exist_ok=True)
    for record, text in texts.items():
        (folder / f"set-{part}" / f"{record}.txt").write_text(text)


def write_outcomes(folder, part, deaths):
    rows = "".join(f"{record},6,1,5,-1,{death}\n" for record, death in deaths.items())
    (folder / f"Outcomes-{part}.txt").write_text(OUTCOMES + rows)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the user's files belong; zips and outcomes lie there."""
    monkeypatch.setenv("PARTITA_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PARTITA_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "data" / "physionet2012"
    folder.mkdir(parents=True)
    for part in "ab":
        write_zip(folder, part, records(part))
        write_outcomes(folder, part, DEATHS[part])
    return folder


def table(frame):
    return np.stack(list(frame.columns.values()), axis=1)


def expected(part):
    """The features by a plain implementation, from the same made-up lines."""
    stay, variable, time, value = [], [], [], []
    for row, record in enumerate(DEATHS[part]):
        weight = [] if record % 2 else ["00:00,Weight,76.5"]
        for line in weight + lines(record):
            clock, name, number = line.split(",")
            stay.append(row)
            variable.append(VARIABLES.index(name))
            time.append(int(clock[:2]) + int(clock[3:]) / 60)
            value.append(float(number))
    return slow(Measurements(*map(np.array, (stay, variable, time, value))), len(DEATHS[part]), len(VARIABLES))


def test_the_sets_are_rows_of_1554_features_in_the_order_of_the_outcomes(folder):
    frames = physionet_frames()
    for part, frame in zip("ab", frames, strict=True):
        assert len(frame.columns) == 37 * 42 == 1554
        np.testing.assert_array_equal(frame.y, list(DEATHS[part].values()))
        np.testing.assert_allclose(table(frame), expected(part), rtol=1e-9, atol=1e-9)
        assert frame.levels == {}
    assert list(frames.train.columns) == list(frames.test.columns)


def test_descriptors_are_left_out_and_minus_one_is_missing(folder):
    train = physionet_frames().train
    assert not [name for name in train.columns if name.split(" · ")[0] in physionet.DESCRIPTORS]
    np.testing.assert_array_equal(train.columns["Weight · all · mean"], [np.nan, np.nan, 76.5])
    np.testing.assert_array_equal(train.columns["Weight · all · count"], [np.nan, np.nan, 1])


@pytest.mark.parametrize("write", [write_tar, write_directory])
def test_folders_and_tar_archives_give_the_same_features(folder, write):
    zipped = physionet_frames()
    for part in "ab":
        (folder / f"set-{part}.zip").unlink()
        write(folder, part, records(part))
    # Line ends of Windows and files that are no records do no harm.
    if write is write_directory:
        path = folder / "set-a" / "132539.txt"
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
        (folder / "set-a" / "notes.txt").write_text("unpacked")
    for one, other in zip(zipped, physionet_frames(), strict=True):
        np.testing.assert_array_equal(table(one), table(other))


def test_missing_files_are_downloaded(folder, tmp_path, monkeypatch):
    server = tmp_path / "server"
    shutil.copytree(folder, server)
    for part in "ab":
        write_tar(server, part, records(part))
        (folder / f"set-{part}.zip").unlink()
        (folder / f"Outcomes-{part}.txt").unlink()
    fetched = []

    def fetch(remote):
        fetched.append(remote)
        return server / remote.name

    monkeypatch.setattr(physionet, "fetch", fetch)
    np.testing.assert_allclose(table(physionet_frames().test), expected("b"), rtol=1e-9, atol=1e-9)
    assert [remote.url for remote in fetched] == [
        f"https://physionet.org/files/challenge-2012/1.0.0/{name}"
        for name in ("Outcomes-a.txt", "set-a.tar.gz", "Outcomes-b.txt", "set-b.tar.gz")
    ]
    assert all(len(remote.sha256) == 64 for remote in fetched)


def garble(path, keep_time):
    """Other bytes, as many as before."""
    status = path.stat()
    path.write_bytes(bytes(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + (0 if keep_time else 1_000_000_000)))


def test_cached_features_are_reused_until_a_file_changes(folder, tmp_path):
    first = physionet_frames()
    assert sorted(path.name for path in (tmp_path / "cache" / "physionet2012").iterdir()) == [
        "features-a.npz",
        "features-b.npz",
    ]
    garble(folder / "set-a.zip", keep_time=True)
    for one, other in zip(first, physionet_frames(), strict=True):
        assert list(one.columns) == list(other.columns)
        np.testing.assert_array_equal(table(one), table(other))
        np.testing.assert_array_equal(one.y, other.y)
    garble(folder / "set-a.zip", keep_time=False)
    with pytest.raises(InputError, match=r"set-a\.zip is damaged"):
        physionet_frames()


@pytest.mark.parametrize("contents", [b"", b"PK\x03\x04 broken off"])
def test_corrupt_cached_features_are_recomputed(folder, tmp_path, contents):
    first = physionet_frames()
    path = tmp_path / "cache" / "physionet2012" / "features-a.npz"
    whole = path.read_bytes()
    path.write_bytes(contents)
    np.testing.assert_array_equal(table(physionet_frames().train), table(first.train))
    assert len(path.read_bytes()) == len(whole)


def test_an_unwritable_cache_is_ignored(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("PARTITA_CACHE", str(tmp_path / "file"))
    np.testing.assert_array_equal(physionet_frames().test.y, [1, 0])


@pytest.mark.parametrize("name", ["set-a.zip", "set-a.tar.gz"])
@pytest.mark.parametrize("damage", [lambda whole: whole[: len(whole) // 2], lambda whole: b"", lambda whole: b"<html>"])
def test_a_damaged_archive_is_named(folder, name, damage):
    write_tar(folder, "a", records("a"))
    if name == "set-a.tar.gz":
        (folder / "set-a.zip").unlink()
    (folder / name).write_bytes(damage((folder / name).read_bytes()))
    with pytest.raises(InputError, match=rf"{name} is damaged"):
        physionet_frames()


def test_an_archive_with_a_wrong_byte_is_named(folder):
    path = folder / "set-a.zip"
    whole = bytearray(path.read_bytes())
    whole[300] ^= 0xFF  # within the first record's compressed text
    path.write_bytes(whole)
    with pytest.raises(InputError, match=r"set-a\.zip is damaged"):
        physionet_frames()


def test_a_record_without_an_outcome_is_refused(folder):
    write_outcomes(folder, "b", {142675: 1})
    with pytest.raises(InputError, match=r"Record 142673 is in .*set-b\.zip but not in .*Outcomes-b\.txt"):
        physionet_frames()


def test_an_outcome_without_a_record_is_refused(folder):
    write_outcomes(folder, "b", {142675: 1, 142673: 0, 7: 0})
    with pytest.raises(InputError, match=r"Record 7 is in .*Outcomes-b\.txt but not in .*set-b\.zip"):
        physionet_frames()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (OUTCOMES + "132539,6,1,5,-1,2\n", "Line 2 of .*Outcomes-a.txt .* an outcome other than 0 and 1"),
        (OUTCOMES + "132539,6,1,5,-1,0\n132539,6,1,5,-1,0\n", "Line 3 of .* repeats record 132539"),
        (OUTCOMES + "132539,6,1\n", "Line 2 of .* has no whole number"),
        (OUTCOMES + "x,6,1,5,-1,0\n", "Line 2 of .* has no whole number"),
        ("<html>\nnot found\n", "Line 2 of .* has no whole number"),
        (OUTCOMES, "holds no outcomes"),
        ("", "holds no outcomes"),
    ],
)
def test_invalid_outcomes_are_refused(folder, text, message):
    (folder / "Outcomes-a.txt").write_text(text)
    with pytest.raises(InputError, match=message):
        physionet_frames()


@pytest.mark.parametrize(
    "line",
    [
        "07:15,HR",
        "07:15,HR,73,1",
        "7:15,HR,73",
        "07:65,HR,73",
        "07-15,HR,73",
        "07:15,Mood,73",
        "07:15,HR,fast",
        "07:15,HR,nan",
    ],
)
def test_an_invalid_line_is_named(folder, line):
    texts = records("a")
    texts[132540] += f"{line}\n09:00,HR,70\n"
    write_zip(folder, "a", texts)
    with pytest.raises(InputError, match=f"Record 132540 has the line '{line}'"):
        physionet_frames()


def test_two_invalid_lines_whose_field_counts_compensate_are_named(folder):
    texts = records("a")
    texts[132540] += "07:15,HR\n07:15,HR,73,09:00\n"
    write_zip(folder, "a", texts)
    with pytest.raises(InputError, match="Record 132540 has the line '07:15,HR'"):
        physionet_frames()


@pytest.mark.parametrize("text", ["", "Time,Parameter,Value\n", "Hours,HR\n1,2\n"])
def test_a_record_that_is_no_table_is_named(folder, text):
    write_zip(folder, "a", records("a") | {132540: text})
    with pytest.raises(InputError, match="Record 132540 is not a table"):
        physionet_frames()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("stream", "shown"), [(io.StringIO(), False), (Terminal(), True)])
def test_progress_is_shown_on_a_terminal_only(folder, monkeypatch, stream, shown):
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stderr", stream)
    physionet_frames()
    assert ("PhysioNet 2012, set a" in stream.getvalue()) is shown
    assert bool(stream.getvalue()) is shown
