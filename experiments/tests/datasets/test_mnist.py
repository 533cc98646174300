"""MNIST read from tiny files of its form."""

import gzip
import importlib
import struct

import numpy as np
import pytest

from partita import InputError
from partita_experiments import datasets

module = importlib.import_module("partita_experiments.datasets.mnist")
IMAGES = np.random.default_rng(0).integers(0, 256, (5, 28, 28)).astype(np.uint8)
LABELS = np.array([3, 0, 9, 1, 3], np.uint8)


def zipped(content):
    """Without the time, which would be in the names of tests and differ between those who run them."""
    return gzip.compress(content, mtime=0)


def idx(items, magic=None):
    header = struct.pack(f">{1 + items.ndim}I", 0x0800 + items.ndim if magic is None else magic, *items.shape)
    return header + items.tobytes()


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Where a test may write the user's own files; the right ones are there."""
    monkeypatch.setenv("PARTITA_DATA", str(tmp_path))
    folder = tmp_path / "mnist"
    folder.mkdir()
    for part, count in (("train", 5), ("t10k", 2)):
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(zipped(idx(IMAGES[:count])))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(zipped(idx(LABELS[:count])))
    return folder


def test_images_are_rows_of_numbers_between_0_and_1(files):
    data = datasets.mnist()
    assert data.train.x.shape == (5, 784)
    assert data.test.x.shape == (2, 784)
    assert data.train.x.dtype == data.train.y.dtype == np.float32
    # rounding of one division in single precision
    np.testing.assert_allclose(data.train.x, IMAGES.reshape(5, 784) / 255, rtol=1e-7)
    assert data.train.y.tolist() == LABELS.tolist()
    assert data.test.y.tolist() == [3, 0]


def test_columns_are_named_after_their_pixels(files):
    data = datasets.mnist()
    row, column = 3, 17
    index = data.names.index(f"pixel_{row}_{column}")
    np.testing.assert_allclose(data.train.x[:, index], IMAGES[:, row, column] / 255, rtol=1e-7)
    assert len(set(data.names)) == 784


GOOD = idx(IMAGES)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train-images-idx3-ubyte.gz", GOOD, "damaged"),  # not compressed
        ("train-images-idx3-ubyte.gz", zipped(GOOD)[:-20], "damaged"),
        ("train-images-idx3-ubyte.gz", zipped(GOOD[:-1]), "announces 5 items and holds 4.99872"),
        ("train-images-idx3-ubyte.gz", zipped(GOOD + b"0"), "announces 5 items"),
        ("train-images-idx3-ubyte.gz", zipped(GOOD[:10]), "magic number 2051"),
        ("train-images-idx3-ubyte.gz", zipped(b""), "magic number 2051"),
        ("train-images-idx3-ubyte.gz", zipped(idx(IMAGES, magic=2052)), "magic number 2051"),
        ("train-images-idx3-ubyte.gz", zipped(idx(LABELS)), "magic number 2051"),
        ("train-images-idx3-ubyte.gz", zipped(idx(IMAGES[:, :8, :8])), "images of 8 × 8 pixels"),
        ("t10k-labels-idx1-ubyte.gz", zipped(GOOD), "magic number 2049"),
        ("t10k-labels-idx1-ubyte.gz", zipped(idx(LABELS)), "t10k files hold 2 images and 5 labels"),
        ("train-labels-idx1-ubyte.gz", zipped(idx(LABELS + 1)), "Label 2 of MNIST's train files is 10"),
    ],
)
def test_a_truncated_or_wrong_file_is_refused(files, name, content, message):
    (files / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        datasets.mnist()


def test_missing_files_are_downloaded_and_checked(files, monkeypatch):
    asked = []

    def fetch(remote):
        asked.append(remote)
        return files / remote.name

    monkeypatch.setattr(module, "fetch", fetch)
    datasets.mnist()
    assert {remote.name for remote in asked} == set(module.DIGESTS)
    for remote in asked:
        assert remote.folder == "mnist"
        assert remote.url == f"https://ossci-datasets.s3.amazonaws.com/mnist/{remote.name}"
        assert len(bytes.fromhex(remote.sha256)) == 32
