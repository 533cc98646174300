"""A client among others whose messages are malicious: each is refused, noted and told, and changes nothing."""

import json
import re
import struct
import tracemalloc

import jax
import numpy as np
import pytest

import partita as pt
from partita.data.preprocess import Summary
from partita.engines.remote import RemoteEngine
from partita.families.factor import Factor
from partita.io import wire
from partita.io.wire import Message
from partita.server.admission import Admission
from partita.server.monitor import Monitor
from partita.server.rules import Rules
from partita.server.state import init
from partita.storage.ledger import Ledger
from support.remote_runs import METHODS, MODEL, PARTS, PRIOR, assert_product, endpoints
from support.remote_runs import serve as serve_under
from support.steps import step
from support.weather import FaultyLink

BOUNDS = Admission(change=1000.0, dominance=20.0, deficit=0.05)
NAME = "client 1"
ROWS = dict(zip(PARTS.names, PARTS.sizes, strict=True))


class Attacker:
    """A client's end that answers tasks with what an attack makes of its honest answer, and keeps what it is told."""

    def __init__(self, site, attack):
        self.site, self.attack, self.told = site, attack, []

    def handle(self, message):
        honest = self.site.handle(message)
        if message.header["kind"] == "update":
            return self.attack(honest)
        if message.header["kind"] == "refused":
            self.told.append(message.header["reason"])
        return honest


class Forging(FaultyLink):
    """A link on which letters arrive that answer nothing, under any name, before each of those that do."""

    def __init__(self, endpoints, forged):
        super().__init__(endpoints)
        self.forged = forged

    def post(self, name, message):
        for author, letter in self.forged:
            self._carry("letter", author, wire.pack(letter(message)))
        super().post(name, message)


def arrays(change):
    """An attack that changes all arrays of an answer."""
    return lambda honest: honest._replace(arrays={name: change(array) for name, array in honest.arrays.items()})


def header(**changed):
    """An attack that changes the header of an answer."""
    return lambda honest: honest._replace(header=honest.header | changed)


def info(**changed):
    """An attack that changes the scalars that go with an answer."""
    return lambda honest: honest._replace(header=honest.header | {"info": honest.header["info"] | changed})


def nested(depth):
    """A list in a list in a list, and so on."""
    found = []
    for _ in range(depth):
        found = [found]
    return found


READ = {
    "not a number": (arrays(lambda array: array * np.nan), "is not finite"),
    "infinite": (arrays(lambda array: array + np.inf), "is not finite"),
    "infinite in one place": (
        arrays(lambda array: np.where(np.arange(array.size).reshape(array.shape) == 0, -np.inf, array)),
        "is not finite",
    ),
    "infinite likelihood": (info(ell=float("-inf"), finite=False), "is not finite"),
    "flipped sign": (arrays(np.negative), "takes away"),
    "flipped sign and larger": (arrays(lambda array: -100 * array), "takes away"),
    "precision spike": (arrays(lambda array: 1e3 * array), "times the precision of all others"),
    "far away": (
        lambda honest: honest._replace(
            arrays=honest.arrays | {".natural.precision_mean": honest.arrays[".natural.precision_mean"] + 1e4}
        ),
        "nats from",
    ),
}
"""Attacks whose answers can be read, and why they are refused."""
UNREADABLE = {
    "too short": (arrays(lambda array: array[..., :-1] if array.ndim else array), r"float64\[1\]"),
    "too large": (arrays(lambda array: np.concatenate([array, array]) if array.ndim else array), r"float64\[4"),
    "another shape": (arrays(lambda array: array[None]), r"float64\[1, "),
    "half the precision": (arrays(lambda array: array.astype(np.float32)), "float32"),
    "whole numbers": (arrays(lambda array: array.astype(np.int64)), "int64"),
    "no arrays": (lambda honest: honest._replace(arrays={}), "holds nothing"),
    "more arrays": (lambda honest: honest._replace(arrays=honest.arrays | {"x": np.zeros(3)}), "more arrays"),
    "an earlier version": (header(version=-1), "another version"),
    "a version that is a list": (header(version=nested(300)), "another version"),
    "another kind": (header(kind="hello"), "not an answer"),
    "a kind that is a list": (header(kind=nested(300)), "not an answer"),
    "no scalars": (header(info=None), "required scalars"),
    "too few scalars": (header(info={"ell": 0.0}), "required scalars"),
    "no such outcome": (info(outcome=99), "outcome"),
    "an outcome that is a text": (info(outcome="CONVERGED"), "outcome"),
    "negative steps": (info(steps=-1), "steps"),
    "endless steps": (info(steps=10**4000), "steps"),
    "a residual that is no number": (info(residual=float("nan")), "residual"),
    "a scalar that is a list": (info(ell=nested(300)), "ell"),
    "a negative variance": (info(ell_variance=-1.0), "ell_variance"),
}
"""Attacks whose answers cannot be read, and why."""
ATTACKS = READ | UNREADABLE


def hostile(method, attack):
    """The clients' ends, one of them the attacker's."""
    ends = endpoints(method)
    ends[NAME] = Attacker(ends[NAME], attack)
    return ends


def events(ledger, name):
    return ledger._db.execute("SELECT event, text FROM events WHERE name = ? ORDER BY place", [name]).fetchall()


def one_step(link, method, ledger):
    """The state after a step, for which the link's clients have ten seconds."""
    rules = Rules(deadline=10.0, quorum=0.5, admission=BOUNDS)
    return step(method, MODEL, RemoteEngine(link, ROWS, ledger), init(PRIOR, PARTS.names), rules, ledger)[0]


@pytest.fixture(scope="module")
def without():
    """The exact posterior of all but the attacker's rows, and the state after a round of them alone."""
    method, ends = METHODS["synchronous"], endpoints(METHODS["synchronous"])
    link = FaultyLink(ends)
    link.down[NAME], link.bounce = np.inf, 0.0
    parts = [shard for name, shard in zip(PARTS.names, PARTS.shards, strict=True) if name != NAME]
    x, y, weights = (
        np.concatenate([np.asarray(part) for part in column])
        for column in zip(*((shard.data.x, shard.data.y, shard.weights) for shard in parts), strict=True)
    )
    precision = np.eye(2) + (x.T * weights) @ x
    mean = np.linalg.solve(precision, (x.T * weights) @ y)
    return precision, mean, one_step(link, method, None)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_refused_answer_leaves_posterior_and_factors_bitwise_unchanged(name, without, tmp_path):
    method = METHODS["synchronous"]
    link = FaultyLink(hostile(method, ATTACKS[name][0]))
    state = one_step(link, method, Ledger(tmp_path / "ledger"))
    assert wire.equal((state.posterior, state.factors), (without[2].posterior, without[2].factors))
    assert wire.equal(state.factors[PARTS.names.index(NAME)], Factor.one(PRIOR))
    assert state.versions.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("schedule", "name"),
    [
        *(("synchronous", name) for name in ATTACKS),
        *(("sequential", name) for name in (*READ, "too short", "no such outcome")),
        *(("asynchronous", name) for name in (*READ, "too short", "no such outcome")),
    ],
)
def test_attacks_are_logged_and_reported_and_do_not_change_the_other_clients_result(name, schedule, without, tmp_path):
    attack, reason = ATTACKS[name]
    method = METHODS[schedule]
    ends, ledger = hostile(method, attack), Ledger(tmp_path / "ledger", durable=False)
    result = serve_under(method, FaultyLink(ends), ledger, admission=BOUNDS, until=30.0)
    assert_product(result.state)
    precision, mean, _ = without
    np.testing.assert_allclose(result.posterior.q.precision, precision, rtol=1e-10)
    np.testing.assert_allclose(result.posterior.mean, mean, rtol=1e-10)
    noted = events(ledger, NAME)
    if schedule != "synchronous" and noted[0] == ("accepted", ""):
        # there was nobody yet to compare it with: it is divided out later
        assert name in ("precision spike", "far away")
        del noted[0]
    assert {event for event, _ in noted} == {"refused"}
    assert all(re.search(reason, text) for _, text in noted)
    assert ends[NAME].told
    assert all(re.search(reason, text) for text in ends[NAME].told)
    assert {event for honest in ROWS if honest != NAME for event, _ in events(ledger, honest)} == {"accepted"}


def test_a_replayed_message_is_late_and_counts_once(tmp_path):
    """The first answer is honest, and so exact here; the same message answers every later task."""
    kept = []

    def again(honest):
        kept.append(honest)
        return kept[0]

    method, ledger = METHODS["synchronous"], Ledger(tmp_path / "ledger")
    result = serve_under(method, FaultyLink(hostile(method, again)), ledger, admission=BOUNDS, until=30.0)
    honest = pt.run(method, MODEL, PRIOR, PARTS, monitor=Monitor(every=0))
    np.testing.assert_allclose(result.posterior.q.precision, honest.posterior.q.precision, rtol=1e-10)
    noted = events(ledger, NAME)
    assert noted[0] == ("accepted", "")
    assert set(noted[1:]) == {("late", "an answer to task '0.1', which is not awaited from it")}
    assert len(noted) > 2
    assert result.state.versions[1] == 1


def test_a_change_replayed_for_every_task_stays_within_the_admission_bound(tmp_path):
    """Without the bound the same rows count once more in every round."""
    kept = []

    def replay(honest):
        kept.append(honest)
        return kept[0]._replace(header=kept[0].header | {key: honest.header[key] for key in ("task", "version")})

    method, ends = METHODS["synchronous"], {}
    for bounds in (Admission(), Admission(dominance=2.0)):
        kept.clear()
        ends[bounds] = serve_under(
            method, FaultyLink(hostile(method, replay)), Ledger(tmp_path / f"{bounds}"), admission=bounds, until=60.0
        ).state
    ratios = [
        float(state.factors[1].natural.precision_range(state.posterior / state.factors[1].natural)[1])
        for state in ends.values()
    ]
    assert ratios[0] > 10
    assert ratios[1] <= 2.0
    assert ends[Admission(dominance=2.0)].versions[0] > ends[Admission(dominance=2.0)].versions[1]


FORGED = {
    "unknown client": ("mallory", lambda task: Message({"kind": "update", "task": task.header["task"]}, {})),
    "another's task": (
        NAME,
        lambda task: Message({"kind": "update", "task": "0.0", "version": 0}, {".natural.precision": np.zeros((2, 2))}),
    ),
    "a task that is a list": ("client 0", lambda task: Message({"kind": "update", "task": nested(300)}, {})),
    "a task that fills the disk": ("client 0", lambda task: Message({"kind": "update", "task": "x" * 10**6}, {})),
    "nothing": ("client 2", lambda task: Message({}, {})),
}


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize("schedule", ["synchronous", "sequential"])
def test_answers_to_unknown_or_other_clients_tasks_are_logged_and_ignored(name, schedule, tmp_path):
    method = METHODS[schedule]
    undisturbed = serve_under(method, FaultyLink(endpoints(method)), Ledger(tmp_path / "undisturbed"))
    author, letter = FORGED[name]
    ledger = Ledger(tmp_path / "forged")
    result = serve_under(method, Forging(endpoints(method), [(author, letter)]), ledger)
    assert result.status is pt.Status.CONVERGED
    assert wire.equal(
        (result.state.posterior, result.state.factors), (undisturbed.state.posterior, undisturbed.state.factors)
    )
    noted = [text for event, text in events(ledger, author) if event == "late"]
    assert len(noted) >= result.state.answers
    assert all("not awaited from it" in text and len(text) < 600 for text in noted)


def test_a_clients_error_message_is_truncated_to_one_line(tmp_path):
    method, ledger = METHODS["synchronous"], Ledger(tmp_path / "ledger")
    attack = header(kind="error", reason="\x1b[2J\n" + "x" * 10**6)
    serve_under(method, FaultyLink(hostile(method, attack)), ledger, until=20.0)
    noted = events(ledger, NAME)
    assert noted
    assert all(event == "failed" and len(text) <= wire.MAX_TEXT_LENGTH and text.isprintable() for event, text in noted)


@pytest.mark.parametrize("variance", [0.0, -1.0, "0", None])
@pytest.mark.parametrize(
    "ell", ["-1.0", None, nested(300), float("nan"), -1.0, [], ["-1.0"], [float("nan")], [-1.0] * 9]
)
def test_an_invalid_free_energy_is_treated_as_missing(ell, variance):
    method = METHODS["synchronous"]
    ends = endpoints(method)

    class Liar:
        def handle(self, message):
            return Message({"kind": "ell", "task": message.header["task"], "ell": ell, "variance": variance}, {})

    ends[NAME] = Liar()
    engine = RemoteEngine(FaultyLink(ends), ROWS)
    engine.bind(method.recipe(MODEL), PRIOR)
    assert np.isnan(engine.ell(PRIOR, jax.random.key(0)))
    assert np.isnan(engine.estimate(PRIOR, jax.random.key(0)).value)


def test_a_stale_free_energy_is_not_used_for_another_posterior():
    """Everybody's answers to a first question come once more, before those to a second."""
    there, key, narrow = endpoints(METHODS["synchronous"]), jax.random.key(0), PRIOR**4.0
    link = FaultyLink(there)
    engine, fresh = RemoteEngine(link, ROWS), RemoteEngine(FaultyLink(there), ROWS)
    for bound in (engine, fresh):
        bound.bind(METHODS["synchronous"].recipe(MODEL), PRIOR)
    first = engine.ell(PRIOR, key)
    for message in [message for message in map(wire.unpack, link.sent) if "name" in message.header]:
        link._carry("letter", message.header["name"], wire.pack(message))
    second = engine.ell(narrow, key)
    assert second == fresh.ell(narrow, key) != first


def crafted(contents, body=b"", length=None):
    """Bytes of a message with any table of contents."""
    head = contents if isinstance(contents, bytes) else json.dumps(contents).encode()
    return wire.sealed(struct.pack("<I", len(head) if length is None else length) + head + body)


def table(kind, shape):
    return {"header": {}, "arrays": [["x", kind, shape]]}


CRAFTED = {
    "terabytes": crafted(table("<f8", [2**40]), bytes(8)),
    "more than there are numbers for": crafted(table("<f8", [2**70]), bytes(8)),
    "a product that overflows to 0": crafted(table("<f8", [2**32, 2**32])),
    "a product that overflows to -1": crafted(table("<f8", [3, (2**64 - 1) // 3]), bytes(8)),
    "nothing in huge rows": crafted(table("<f8", [0, 2**62, 2**62])),
    "a negative side": crafted(table("<f8", [-1]), bytes(8)),
    "a side that is a truth value": crafted(table("<f8", [True]), bytes(8)),
    "a thousand axes": crafted(table("<f8", [1] * 1000), bytes(8)),
    "objects": crafted(table("|O", [1]), bytes(8)),
    "texts": crafted(table("<U1000000000", [1]), bytes(8)),
    "records": crafted(table([["a", "<f8"]], [1]), bytes(8)),
    "a kind that is a list": crafted(table(["<f8"], [1]), bytes(8)),
    "a pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    "an archive": b"PK\x03\x04" + bytes(100),
    "lists in lists": crafted(b'{"arrays": [], "header": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "a header beyond the end": crafted(b"{}", length=2**31),
    "a long header": crafted(b'{"arrays": [], "header": {"x": "' + b"x" * wire.HEADER + b'"}}'),
    "a long number": crafted(b'{"arrays": [], "header": {"x": ' + b"9" * 5000 + b"}}"),
    "more than it says": crafted(table("<f8", [1]), bytes(16)),
    "less than it says": crafted(table("<f8", [2]), bytes(8)),
    "no table": crafted(b"[]"),
    "no header": crafted({"arrays": []}),
    "a header that is a list": crafted({"header": [], "arrays": []}),
    "cut off": b"partita\x01\x00",
    "empty": b"",
}


@pytest.mark.parametrize("name", CRAFTED)
def test_crafted_bytes_are_refused_without_allocating_memory(name):
    tracemalloc.start()
    try:
        with pytest.raises(pt.InputError, match="not a partita message") as refusal:
            wire.unpack(CRAFTED[name])
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 10_000_000
    assert len(str(refusal.value)) < 700


def test_a_message_with_arrays_larger_than_allowed_is_refused():
    data = wire.pack(Message({}, {"x": np.zeros(10)}))
    assert wire.unpack(data, largest=80).size == 80
    with pytest.raises(pt.InputError, match="80 bytes, where 79 are allowed"):
        wire.unpack(data, largest=79)


@pytest.mark.parametrize(
    "column",
    [
        {"present": 10**400, "mean": 1.0, "rest": 0.0, "squares": 1.0},
        {"present": 2, "mean": 1e300, "rest": 0.0, "squares": 1.0},
        {"present": 2, "mean": 0.0, "rest": 0.0, "squares": 1e308},
        {"present": 2, "mean": float("nan"), "rest": 0.0, "squares": 1.0},
        {"present": float("inf"), "mean": 0.0, "rest": 0.0, "squares": 1.0},
        {"present": 2, "mean": 10**400, "rest": 0.0, "squares": 1.0},
        {"declared": [], "counts": {"a": 10**400}},
    ],
)
def test_impossible_column_summaries_are_refused(column):
    with pytest.raises(pt.InputError, match="not a summary"):
        Summary.from_dict({"columns": [{"name": "age", **column}]})


def test_the_antisymmetric_part_of_a_precision_matrix_is_dropped(tmp_path):
    """Honest clients end as if nothing had been sent: it would be in every product with the posterior's precision."""

    def twisted(honest):
        name = ".natural.precision"
        twist = 1e6 * np.array([[0.0, 1.0], [-1.0, 0.0]])
        return honest._replace(arrays=honest.arrays | {name: honest.arrays[name] + twist})

    method, ledger = METHODS["synchronous"], Ledger(tmp_path / "ledger")
    result = serve_under(method, FaultyLink(hostile(method, twisted)), ledger, admission=BOUNDS)
    honest = pt.run(method, MODEL, PRIOR, PARTS, monitor=Monitor(every=0))
    np.testing.assert_allclose(result.posterior.q.precision, honest.posterior.q.precision, rtol=1e-9)
    np.testing.assert_allclose(result.posterior.mean, honest.posterior.mean, rtol=1e-9)
