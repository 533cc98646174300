"""Lies of round 0: sums that no rows have, or that lie far from the others', are noted and leave no trace."""

import dataclasses
import json
import time

import numpy as np
import pytest

from partita.data.columns import Counts, Moments
from partita.data.disclosure import Limits
from partita.data.plausible import MOST_LEVELS, check_sums, crowding, outlying
from partita.data.preprocess import Summary
from partita.errors import DamagedFileError, DataError
from partita.federation import config
from partita.federation.beginning import agreed, beginning
from partita.federation.client import Client
from partita.federation.enrolment import Enrolment
from partita.federation.loop import Loop
from partita.federation.serve import LEDGER_FILE, serve
from partita.io import wire
from partita.storage.ledger import Ledger
from support.clinic_files import TOML, clinic, write

NAMES = ("east", "north", "west", "south")
FORMULA = """
name = "clinics"
clients = ["east", "north", "west", "south"]

[fit]
formula = "ill ~ {formula}"
family = "bernoulli"
missing = "{missing}"

[run]
assemble = 5

[admission]
moments = 8
"""


class Liar:
    """A client's end that answers one stage of round 0 with what a lie makes of its sums."""

    def __init__(self, client, lie):
        self.client, self.lie = client, lie

    def handle(self, message):
        honest = self.client.handle(message)
        if honest.header["kind"] != "hello":
            return honest
        header = json.loads(json.dumps(honest.header))
        self.lie(header)
        return honest._replace(header=header)


def of(name, **changed):
    """A lie about a column's sums."""

    def lie(header):
        for column in header["answer"].get("columns", ()):
            if column["name"] == name:
                column.update({key: change(column) for key, change in changed.items()})

    return lie


def counted(name, change):
    """A lie about counts in bins."""

    def lie(header):
        if name in header["answer"]:
            header["answer"][name] = change(header["answer"][name])

    return lie


def rows(count):
    def lie(header):
        header["rows"] = count

    return lie


PAIN, KNOTS = "C(pain)", "bs(age, df=4)"
LIES = {
    "more present than rows": (of("pressure", present=lambda it: it["present"] + 1), "31 rows"),
    "fewer present than rows": (of("pressure", present=lambda it: it["present"] - 1), "are of 29 rows"),
    "more rows": (rows(31), "are of 30 rows"),
    "all rows there are": (rows(2**60), "rows"),
    "counts that do not add up": (of(PAIN, counts=lambda it: it["counts"] | {"much": 50}), "rows"),
    "squares of one value": (of("pressure", present=lambda it: 1), "not a column's moments"),
    "a mean of none": (of("pressure", present=lambda it: 0, squares=lambda it: 0.0), "not a column's moments"),
    "a rest": (of("pressure", rest=lambda it: 1.0), "not a column's moments"),
    "a far mean": (of("pressure", mean=lambda it: 1e9, rest=lambda it: 0.0), "sds from the median"),
    "a large sd": (of("pressure", squares=lambda it: 1e9), "has an sd of 'pressure'"),
    "a far mean of the design": (of(f"{KNOTS}[2]", mean=lambda it: 1e9, rest=lambda it: 0.0), "sds from the median"),
    "levels of nobody": (of(PAIN, counts=lambda it: it["counts"] | {f"{k}": 0 for k in range(5)}), ""),
    "many levels": (of(PAIN, counts=lambda it: {f"{k}": 1 for k in range(MOST_LEVELS + 1)}), "rows"),
    "declared levels": (of(PAIN, declared=lambda it: ["none"]), "declares levels"),
    "a level that writes": (
        of(PAIN, counts=lambda it: {f"\x1b[2J{level}": count for level, count in it["counts"].items()}),
        "cannot be printed",
    ),
    "a level of a page": (
        of(PAIN, counts=lambda it: {f"{'x' * 500}{level}": count for level, count in it["counts"].items()}),
        "more than 200 characters",
    ),
    "more values in bins": (counted(KNOTS, lambda it: [count + 1 for count in it]), "has counted"),
    "fewer values in bins": (counted(KNOTS, lambda it: [1, *[0] * (len(it) - 1)]), "has counted"),
}
"""Each with a part of the reason that is noted; without any, the lie is taken and changes nothing."""


def federation(missing="drop", formula="bs(age, df=4) + pressure + C(pain)"):
    return config.read(FORMULA.format(missing=missing, formula=formula).encode(), "federation.toml")


def files(folder, names=NAMES, empty=()):
    found = {name: folder / f"{name}.csv" for name in names}
    for seed, path in enumerate(found.values()):
        write(path, [("", *row[1:]) if k in empty else row for k, row in enumerate(clinic(seed))])
    return found


def alone(about, paths, names):
    begun = beginning(about)
    return agreed(begun, [begun.read(paths[name], name) for name in names], Limits(1, 1)).to_dict()


def events(folder):
    found = Ledger(folder / LEDGER_FILE)._db.execute("SELECT text FROM events WHERE event = 'incompatible'")
    return [text for (text,) in found]


QUICK = ("more present than rows", "a far mean of the design", "levels of nobody", "fewer values in bins")
"""One of each stage and kind."""


@pytest.mark.parametrize("lie", [lie if lie in QUICK else pytest.param(lie, marks=pytest.mark.slow) for lie in LIES])
def test_a_lie_of_round_0_is_noted_and_the_others_agree_as_without_the_liar(lie, tmp_path):
    about, paths, (changes, told) = federation(), files(tmp_path), LIES[lie]
    link = Loop({name: Client(name, about, path, Limits(1, 1)) for name, path in paths.items()})
    link.clients["south"] = Liar(link.clients["south"], changes)
    reception = Enrolment(about, link, Ledger(tmp_path / LEDGER_FILE))
    found = reception.assemble().to_dict()
    if not told:
        assert found == alone(about, paths, NAMES)
        return
    assert found == alone(about, paths, NAMES[:3])
    assert list(reception.rows) == list(NAMES[:3])
    assert told in reception.unfit["south"]
    assert any(told in text for text in events(tmp_path))


def test_without_a_bound_a_client_that_lies_far_is_spoken_of_and_takes_part(tmp_path, caplog):
    about, paths = federation(formula="pressure"), files(tmp_path)
    about = dataclasses.replace(about, admission=dataclasses.replace(about.admission, moments=0.0))
    write(paths["south"], [(*row[:1], 1000 * row[1], *row[2:]) for row in clinic(3)])
    link = Loop({name: Client(name, about, path, Limits(1, 1)) for name, path in paths.items()})
    reception = Enrolment(about, link, Ledger(tmp_path / LEDGER_FILE))
    reception.assemble()
    assert "south" in reception.rows
    said = [line for line in caplog.messages if "takes part" in line]
    assert said
    assert all(line.startswith("south has") for line in said)


def test_a_lie_about_what_is_missing_is_noted(tmp_path):
    about, paths = federation("mean"), files(tmp_path, empty={1, 4})
    link = Loop({name: Client(name, about, path, Limits(1, 1)) for name, path in paths.items()})
    link.clients["south"] = Liar(link.clients["south"], of("missing(age)", mean=lambda it: -7.0))
    reception = Enrolment(about, link, Ledger(tmp_path / LEDGER_FILE))
    assert reception.assemble().to_dict() == alone(about, paths, NAMES[:3])
    assert "'missing(age)'" in reception.unfit["south"]


def test_a_liar_leaves_the_posterior_as_it_is_without_it(tmp_path):
    about, paths = federation(formula="pressure"), files(tmp_path)
    runs = {}
    for run, names in (("with", NAMES), ("without", NAMES[:3])):
        link = Loop({name: Client(name, about, paths[name], Limits(1, 1)) for name in names})
        if run == "with":
            link.clients["south"] = Liar(link.clients["south"], LIES["a far mean"][0])
        (tmp_path / run).mkdir()
        runs[run] = serve(tmp_path / run, about, link)
    assert wire.equal(*(run.posterior.q for run in runs.values()))
    assert "south does not fit: has a mean of 'pressure'" in runs["with"].message


def test_a_lie_about_columns_without_a_formula_is_noted(tmp_path):
    text = TOML.replace('["east", "north", "west"]', '["east", "north", "west", "south"]') + "assemble = 5\n"
    about = config.read(f"{text}\n[admission]\nmoments = 8\n".encode(), "federation.toml")
    paths = files(tmp_path)
    lies = {"31 rows": of("age", present=lambda it: 31), "sds": of("age", mean=lambda it: -1e9, rest=lambda it: 0.0)}
    for told, lie in lies.items():
        link = Loop({name: Client(name, about, path, Limits(1, 1)) for name, path in paths.items()})
        link.clients["south"] = Liar(link.clients["south"], lie)
        folder = tmp_path / told
        folder.mkdir()
        reception = Enrolment(about, link, Ledger(folder / LEDGER_FILE))
        assert reception.assemble().to_dict() == alone(about, paths, NAMES[:3])
        assert told in reception.unfit["south"]


def test_who_has_no_part_in_the_posterior_may_still_have_one_in_the_encoding(tmp_path):
    about, paths = federation(formula="pressure"), files(tmp_path)
    serve(tmp_path, about, Loop({name: Client(name, about, path, Limits(1, 1)) for name, path in paths.items()}))
    Ledger(tmp_path / LEDGER_FILE).request("south", "retire")
    more = dataclasses.replace(about, run=dataclasses.replace(about.run, rounds=40.0))
    result = serve(
        tmp_path, more, Loop({name: Client(name, about, path, Limits(1, 1)) for name, path in paths.items()})
    )
    assert (
        "south has no part in the posterior, but columns are still encoded by its sums of round 0 too" in result.message
    )
    assert "north" not in result.message


def moments(mean, sd, rows=100):
    return Moments(rows, mean, 0.0, sd**2 * rows)


def test_one_liar_of_three_is_told_from_the_others_whatever_it_says():
    honest = {"a": moments(0.0, 1.0), "b": moments(1.0, 3.0)}
    for mean in (-1e30, -50.0, 50.0, 1e12):
        for sd in (0.0, 1e-9, 1.0, 1e6):
            summaries = {name: Summary({"x": one}) for name, one in (honest | {"liar": moments(mean, sd)}).items()}
            assert list(outlying(summaries, 8.0)) == ["liar"], (mean, sd)
    assert outlying({name: Summary({"x": one}) for name, one in honest.items()}, 1.1) == {}


def test_several_liars_are_found_one_after_another():
    told = {f"{k}": moments(0.1 * k, 1.0 + 0.1 * k) for k in range(5)} | {
        "x": moments(1e3, 1.0),
        "y": moments(0.0, 1e3),
    }
    assert set(outlying({name: Summary({"x": one}) for name, one in told.items()}, 8.0)) == {"x", "y"}


def test_rare_levels_are_no_lie():
    """A share of 0 and 1 at one client, and nearly none at the others."""
    shares = {"a": 0.0, "b": 0.001, "c": 0.9}
    summaries = {name: Summary({"x": moments(p, (p * (1 - p)) ** 0.5, 1000)}) for name, p in shares.items()}
    assert outlying(summaries, 2.0) == {}


def test_levels_of_one_client_that_crowd_out_the_others_are_its_own():
    few = {name: Summary({"x": Counts((), {f"{k}": 1 for k in range(5)})}) for name in "abc"}
    many = {"d": Summary({"x": Counts((), {f"d{k}": 1 for k in range(MOST_LEVELS)})})}
    assert list(crowding(few | many)) == ["d"]
    assert crowding(few) == {}
    everybody = {n: Summary({"x": Counts((), {f"{n}{k}": 1 for k in range(600)})}) for n in "ab"}
    assert crowding(everybody) == {}  # an identifier: the formula is at fault, and no client


def test_sums_of_honest_rows_pass():
    generator = np.random.default_rng(0)
    for size in (1, 2, 7, 1000):
        for scale in (1e-200, 1.0, 1e50):
            values = scale * (generator.standard_normal(size) + 3)
            column = Moments.summarise("x", values)
            merged = Moments.merge("x", [column, column])
            check_sums(Summary({"x": column}), size, size, whole=True)
            check_sums(Summary({"x": merged}), 2 * size, 2 * size, whole=True)
    with pytest.raises(DataError, match="is it an identifier"):
        check_sums(Summary({"x": Counts((), {f"{k}": 1 for k in range(1001)})}), 1001, 1001, whole=True)


def test_shapes_of_many_sides_are_refused_before_anything_is_multiplied():
    for shape in ([2] * 400_000, [2**40] * 64, [2**60] * 64, [0] * 400_000, [10**4000]):
        head = json.dumps({"header": {}, "arrays": [["x", "<f8", shape]]}).encode()
        data = wire.sealed(len(head).to_bytes(4, "little") + head)
        began = time.process_time()
        with pytest.raises(DamagedFileError):
            wire.unpack(data)
        assert time.process_time() - began < 0.1
        with pytest.raises((ValueError, OverflowError)):
            wire.view("x", "<f8", tuple(shape), b"12345678")
