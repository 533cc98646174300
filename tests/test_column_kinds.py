"""A kind of column is one class: with one more, frames, summaries and encodings have it."""

import dataclasses
import json

import numpy as np
import pytest

from partita import InputError
from partita.data import preprocess
from partita.data.columns import KINDS, Column
from partita.data.frame import Frame


@dataclasses.dataclass(frozen=True)
class Days(Column):
    """Dates, of which the first and the last are sent; encoded as days, from −1 to 1."""

    kind = "dates"
    dtype = np.dtype("datetime64[D]")
    first: int
    last: int

    @classmethod
    def array(cls, values):
        return values.astype(cls.dtype) if values.dtype.kind == "M" else None

    @classmethod
    def read(cls, name, values, levels):
        return values.to_numpy().astype(cls.dtype)

    @classmethod
    def summarise(cls, name, values, declared):
        return cls(int(values.min().astype(int)), int(values.max().astype(int)))

    @classmethod
    def merge(cls, name, columns):
        return cls(min(column.first for column in columns), max(column.last for column in columns))

    def scales(self):
        return [((self.first + self.last) / 2, 0.0, (self.last - self.first) / 2)]

    @classmethod
    def encode(cls, name, values, levels):
        return [(f"{name} in days", values.astype(int).astype(float))]


@pytest.fixture
def dates(monkeypatch):
    monkeypatch.setitem(KINDS, Days.kind, Days)
    days = np.array(["2020-01-01", "2020-01-03", "2020-01-05"], dtype="datetime64[s]")
    return Frame.build({"age": np.array([1.0, 2.0, 3.0]), "seen": days}, np.zeros(3))


def test_a_registered_column_kind_is_summarised_and_encoded(dates):
    clients = [dates.rows(np.array([0, 1])), dates.rows(np.array([2]))]
    sent = [json.loads(json.dumps(preprocess.summarise(client).to_dict())) for client in clients]
    merged = preprocess.merge(map(preprocess.Summary.from_dict, sent))
    agreed = preprocess.Encoding.from_dict(json.loads(json.dumps(preprocess.encoding(merged).to_dict())))
    assert agreed.names == ("intercept", "age", "seen in days")
    np.testing.assert_array_equal(agreed.encode(dates).x[:, 2], [-1, 0, 1])
    agreed.check(preprocess.summarise(clients[0]))


def test_clients_with_different_column_kinds_are_refused_with_both_named(dates):
    other = Frame.build({"age": np.zeros(1), "seen": np.array(["today"])}, np.zeros(1))
    with pytest.raises(InputError, match="'seen' is categorical at one client and dates at another"):
        preprocess.federated([dates, other])
    with pytest.raises(InputError, match="'seen' has another type than agreed on: make it dates"):
        preprocess.federated([dates]).check(preprocess.summarise(other))


def test_arrays_of_an_unregistered_kind_are_refused():
    with pytest.raises(InputError, match=r"'seen' holds .*datetime"):
        Frame.build({"seen": np.array(["2020-01-01"], dtype="datetime64[D]")}, np.zeros(1))
