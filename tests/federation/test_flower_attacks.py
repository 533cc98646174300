"""What Flower hands over: nodes that say they are somebody else, and messages that are too long or no messages."""

import io
import uuid

import jax
import numpy as np
import pytest

pytest.importorskip("flwr")
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.app import Message as Envelope
from flwr.supercore.task_identity import TaskIdentity

import partita as pt
from partita.engines import Failure
from partita.engines.flower import RAW, FlowerLink, from_records, to_records
from partita.engines.remote import RemoteEngine
from partita.io.wire import Message
from partita.server.state import init
from partita.server.step import dispatch
from partita.storage.ledger import Ledger
from support.grid import FakeGrid
from support.remote_runs import METHODS, MODEL, PRIOR, endpoints

METHOD = METHODS["sequential"]


@pytest.fixture(autouse=True)
def inside_a_run(monkeypatch):
    """Flower makes messages only in a process that belongs to one of its runs."""
    for number in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, number, 1)


class Nodes:
    """A stand-in for Flower's grid: nodes that answer at once what they are told to."""

    def __init__(self, answers):
        self.answers, self.heard, self._replies = answers, [], {}

    def get_node_ids(self):
        return list(self.answers)

    def push_messages(self, envelopes):
        for envelope in envelopes:
            identity = envelope.metadata.__dict__["_message_id"] = str(uuid.uuid4())
            message = from_records(envelope.content)
            self.heard.append((envelope.metadata.dst_node_id, message))
            answer = self.answers[envelope.metadata.dst_node_id](message)
            if answer is not None:
                self._replies[identity] = Envelope(answer, reply_to=envelope)
            yield identity

    def pull_messages(self, identities):
        return [self._replies.pop(identity) for identity in list(identities) if identity in self._replies]


def named(name, then=lambda message: None):
    """A node that says it has this name, and answers the rest with `then`."""
    return lambda message: (
        to_records(Message({"name": name}, {})) if message.header["kind"] == "name" else then(message)
    )


def test_records_hold_what_was_packed():
    sent = Message({"kind": "update", "info": {"ell": -1.5}}, {"x": np.arange(6.0).reshape(2, 3), "y": np.array(True)})
    back = from_records(to_records(sent))
    assert back.header == sent.header
    np.testing.assert_array_equal(back.arrays["x"], sent.arrays["x"])
    assert back.arrays["y"].dtype == bool


def saved(array, **options):
    """An array as Flower itself would carry it, pickled if need be."""
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def records(array, header="{}"):
    """A header and one array as they come."""
    return RecordDict({"header": ConfigRecord({"json": header}), "arrays": ArrayRecord({"x": array})})


PICKLE = saved(np.array([{}], dtype=object), allow_pickle=True)
RECORDS = {
    "nothing": RecordDict({}),
    "settings": RecordDict({"header": ConfigRecord({"json": "{}"}), "arrays": ConfigRecord({"bytes": b"partita"})}),
    "no header": RecordDict({"arrays": ArrayRecord({"x": Array("<f8", (0,), RAW, b"")})}),
    "another header": records(Array("<f8", (0,), RAW, b""), "{"),
    "a deep header": records(Array("<f8", (0,), RAW, b""), "[" * 100_000),
    "Flower's own array": records(Array(np.zeros(3))),
    "a pickle": records(Array("object", (1,), "numpy.ndarray", PICKLE)),
    "objects": records(Array("|O", (1,), RAW, bytes(8))),
    "a terabyte": records(Array("<f8", (2**37,), RAW, bytes(8))),
    "less than nothing": records(Array("<f8", (-1, -1), RAW, bytes(8))),
}
NONE = {"nothing at all": None, "a number": 7, "an array's record": ArrayRecord({}), "settings alone": ConfigRecord({})}


@pytest.mark.parametrize("name", [*RECORDS, *NONE])
def test_records_that_are_not_partita_messages_are_refused(name):
    with pytest.raises(pt.InputError, match="not a partita message"):
        from_records((RECORDS | NONE)[name])


def attacked(answer, ledger):
    """The engine, the grid and the first task of a federation in which client 0 answers tasks so."""
    grid = Nodes({1: named("client 0", answer)})
    engine = RemoteEngine(FlowerLink(grid, ["client 0", "client 1"]), {"client 0": 10, "client 1": 10}, ledger)
    engine.bind(METHOD.recipe(MODEL), PRIOR)
    state = dispatch(METHOD, init(PRIOR, ["client 0", "client 1"]), np.zeros(2, bool))
    assert engine.away(["client 0"]).all()
    assert engine.next(0.0) is None
    assert not engine.away(["client 0"]).any()
    engine.submit(state.in_flight[0])
    return engine, grid, state.in_flight[0]


@pytest.mark.parametrize("name", [*RECORDS, "much larger than the task"])
def test_an_unreadable_answer_is_refused_at_once_logged_and_reported(name, tmp_path):
    large = to_records(Message({"kind": "update", "task": "0.0", "version": 0}, {"x": np.zeros(1000)}))
    ledger = Ledger(tmp_path / "ledger")
    engine, grid, task = attacked(lambda message: RECORDS.get(name, large), ledger)
    came = engine.next(0.0)
    assert isinstance(came, Failure)
    assert came.task == task.id
    noted = ledger._db.execute("SELECT name, event, text FROM events").fetchall()
    assert [row[:2] for row in noted] == [("client 0", "refused")]
    assert "not a partita message" in noted[0][2]
    assert name in RECORDS or "8000 bytes of arrays" in noted[0][2]
    told = grid.heard[-1][1].header
    assert (told["kind"], told["task"]) == ("refused", task.id)


def test_an_honest_answer_is_not_too_large(tmp_path):
    site = endpoints(METHOD)["client 0"]
    engine, _, task = attacked(lambda message: to_records(site.handle(message)), Ledger(tmp_path / "ledger"))
    came = engine.next(0.0)
    assert came.task == task.id
    assert jax.tree.all(jax.tree.map(lambda leaf: np.isfinite(leaf).all(), came.reply.delta))


def test_a_clients_failure_is_written_to_its_own_log(tmp_path, caplog):
    """Flower tells the server no more than that it failed."""
    grid = FakeGrid([{"client": "east", "folder": str(tmp_path), "data": "east.csv"}])
    task = Envelope(to_records(Message({}, {})), dst_node_id=1, message_type="train.partita")
    with pytest.raises(pt.InputError):
        list(grid.push_messages([task]))
    assert [message.partition(": ")[0] for message in caplog.messages] == ["east"]


@pytest.mark.parametrize("name", [["east"], {"east": 1}, None, 7, "eastern", "east\n"])
def test_a_node_with_an_unknown_name_is_ignored(name):
    link = FlowerLink(Nodes({1: named(name)}), ["east", "west"])
    assert link.poll(0.0) is None
    assert list(link.present()) == []


def test_without_keys_a_name_belongs_to_its_first_node_while_it_is_online():
    grid = Nodes({1: named("east"), 2: named("east")})
    link = FlowerLink(grid, ["east", "west"])
    link.poll(0.0)
    assert link._nodes == {"east": 1}
    del grid.answers[1]
    link._looked, link._asked = -np.inf, {}
    link.poll(0.0)
    assert link._nodes == {"east": 2}


def test_without_keys_a_second_node_of_a_name_is_told_that_it_is_taken():
    """It idled in silence; what it answers changes nothing, and it is told once for every time it is asked."""
    grid = Nodes({1: named("east"), 2: named("east", lambda message: to_records(Message({"name": "east"}, {})))})
    link = FlowerLink(grid, ["east", "west"])
    for _ in range(3):
        assert link.poll(0.0) is None
    told = [(node, message.header) for node, message in grid.heard if message.header["kind"] == "refused"]
    assert [node for node, _ in told] == [2]
    assert "another client of this name" in told[0][1]["reason"]
    assert link._nodes == {"east": 1}


def test_with_keys_a_node_is_identified_by_its_key():
    """Whatever it says; nobody is asked."""
    grid = Nodes({1: named("east"), 2: named("east"), 3: named("east")})
    link = FlowerLink(grid, ["east", "west"], {"east": 2, "west": 4})
    link.poll(0.0)
    assert list(link.present()) == ["east"]
    assert link._nodes == {"east": 2}
    assert grid.heard == []
