"""MNIST: 70,000 handwritten digits, in the files of its authors, from the user or downloaded."""

import gzip
import math
import struct
import zlib

import numpy as np
from jaxtyping import UInt8

from partita.data.datasets import Dataset
from partita.data.table import Table
from partita.errors import InputError
from partita_experiments.datasets.fetch import Remote, fetch

ADDRESS = "https://ossci-datasets.s3.amazonaws.com/mnist/"
PIXELS = (28, 28)

DIGESTS = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
"""The files and their sha256."""


def mnist() -> Dataset:
    """MNIST: which digit is it? 60,000 and 10,000 images of 28 × 28 pixels in [0, 1], ten classes; without intercept.

    LeCun, Bottou, Bengio and Haffner (1998). Single precision, since it is for networks.
    """
    names = tuple(f"pixel_{row}_{column}" for row in range(PIXELS[0]) for column in range(PIXELS[1]))
    return Dataset(_table("train"), _table("t10k"), names)


def _table(part: str) -> Table:
    images = _read(f"{part}-images-idx3-ubyte.gz", PIXELS)
    labels = _read(f"{part}-labels-idx1-ubyte.gz", ())
    if len(images) != len(labels):
        raise InputError(
            f"MNIST's {part} files hold {len(images)} images and {len(labels)} labels: get new copies of both."
        )
    if (labels > 9).any():
        row = int(np.argmax(labels > 9))
        raise InputError(f"Label {row} of MNIST's {part} files is {labels[row]} instead of a digit: get a new copy.")
    x = images.reshape(len(images), -1) / np.float32(255)
    return Table(x, labels.astype(np.float32))  # type: ignore[arg-type]


def _read(name: str, shape: tuple[int, ...]) -> UInt8[np.ndarray, "n ..."]:
    """The items of this shape in an idx file: a magic number, the axes' lengths, and bytes."""
    path = fetch(Remote("mnist", name, ADDRESS + name, DIGESTS[name]))
    try:
        content = gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"The archive {path} is damaged ({error}): delete it and get a new copy.") from None
    magic, axes = 0x0800 + 1 + len(shape), 1 + len(shape)
    start = 4 * (1 + axes)
    header = struct.unpack(f">{1 + axes}I", content[:start]) if len(content) >= start else (None,)
    if header[0] != magic:
        raise InputError(f"{path} does not begin with the magic number {magic} and its lengths: get a new copy.")
    count, *lengths = header[1:]
    if tuple(lengths) != shape:
        raise InputError(f"{path} holds images of {' × '.join(map(str, lengths))} pixels instead of 28 × 28.")
    if len(content) - start != math.prod((count, *shape)):
        raise InputError(
            f"{path} announces {count} items and holds {(len(content) - start) / math.prod(shape):g}: get a new copy."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(count, *shape)
