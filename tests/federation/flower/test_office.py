"""What a server keeps for its clients, on a clock of the test's own: its bounds, its times, and whose is whose."""

import hashlib

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from partita.errors import InputError
from partita.federation.clock import awake
from partita.federation.flower import office as module
from partita.federation.flower.objects import chain, unwrapped, wrapped
from partita.federation.flower.office import Office, TakenError
from partita.io.wire import Message, pack

KEYS = {"east": b"one", "west": b"two"}
TASK = Message({"kind": "update", "task": "1.0"}, {"x": np.arange(8.0)})
ANSWER = Message({"kind": "update", "task": "1.0"}, {"x": np.ones(8)})
ABOUT = Metadata(1, "", 12, 1, "a task", "", 1.8e9, 60.0, "train.partita")


class Clock:
    """Stands still until it is moved."""

    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def office(clock):
    found = Office(KEYS, life=600.0, clock=clock)
    for name in KEYS:
        found.enter(name, f"of {name}")
    return found


def handed(office, name, given, message=ANSWER):
    """A client hands in an answer; which of its objects were taken."""
    parcel = wrapped(message, ABOUT)
    wanted = office.announce(name, given.identity, parcel.tree)
    return [office.take(name, identity, parcel.contents[identity]) for identity in wanted]


def test_objects_hold_what_was_packed():
    parcel = wrapped(TASK, ABOUT)
    assert len(parcel.contents) == 3
    assert list(parcel.contents) == chain(parcel.tree)[::-1]
    assert all(hashlib.sha256(content).hexdigest() == name for name, content in parcel.contents.items())
    back = unwrapped(parcel.tree, parcel.contents, TASK.size, 1000)
    assert back.header == TASK.header
    np.testing.assert_array_equal(back.arrays["x"], TASK.arrays["x"])


def test_an_answer_goes_to_whoever_asked(office):
    office.post("east", TASK)
    given = office.next("east")
    assert handed(office, "east", given) == [True] * 3
    name, message, _ = office.poll(0.0)
    assert (name, message.header) == ("east", ANSWER.header)
    assert not office._nodes["east"].asked


def test_a_client_cannot_answer_for_another_nor_read_its_messages(office):
    office.post("east", TASK)
    given = office.next("east")
    assert office.next("west") is None
    assert handed(office, "west", given) == []
    assert all(office.content("west", identity) is None for identity in chain(given.tree))
    assert all(office.content("east", identity) for identity in chain(given.tree))
    assert office.poll(0.0) is None


def test_what_nobody_asked_for_is_not_kept(office):
    parcel = wrapped(ANSWER, ABOUT)
    assert office.announce("east", "0" * 64, parcel.tree) == []
    assert not any(office.take("east", identity, content) for identity, content in parcel.contents.items())
    assert office.room("east") == 0


def test_an_answer_that_is_longer_than_its_task_is_not_taken(office):
    office.post("east", TASK)
    given = office.next("east")
    parcel = wrapped(Message({}, {"x": np.zeros(2**18)}), ABOUT)
    wanted = office.announce("east", given.identity, parcel.tree)
    with pytest.raises(ValueError, match="longer than it can be"):
        [office.take("east", identity, parcel.contents[identity]) for identity in wanted]


def test_an_answer_with_more_arrays_than_its_task_is_unreadable(office):
    """There is room for a long header, which arrays may not take."""
    office.post("east", TASK)
    assert all(handed(office, "east", office.next("east"), Message({}, {"x": np.zeros(1000)})))
    message = office.poll(0.0).message
    assert (message.header["kind"], message.header["task"]) == ("unreadable", "1.0")
    assert "8000 bytes" in message.header["reason"]


def test_an_object_that_is_not_what_its_name_says_is_refused(office):
    office.post("east", TASK)
    given, parcel = office.next("east"), wrapped(ANSWER, ABOUT)
    (first, *_) = office.announce("east", given.identity, parcel.tree)
    with pytest.raises(ValueError, match="another than its name"):
        office.take("east", first, b"others")


def described(content):
    """The tree and the contents of a message with this content, as Flower itself writes it."""
    envelope = make_message(ABOUT, content)
    return get_object_tree(envelope), {name: one.deflate() for name, one in get_all_nested_objects(envelope).items()}


CONTENTS = {
    "nothing": RecordDict({}),
    "an array": RecordDict({"partita": ArrayRecord({"x": Array(np.zeros(3))})}),
    "two records": RecordDict({"a": ConfigRecord({"b": pack(TASK)}), "c": ConfigRecord({"d": b"e"})}),
    "other bytes": RecordDict({"partita": ConfigRecord({"partita": b"partita"})}),
    "a cut message": RecordDict({"partita": ConfigRecord({"partita": pack(TASK)[:-8]})}),
    "a text": RecordDict({"partita": ConfigRecord({"partita": "partita\x02"})}),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_what_is_no_message_of_partitas_is_refused(name):
    with pytest.raises(InputError, match="not a partita message"):
        unwrapped(*described(CONTENTS[name]), 10**6, 10**6)


def tree(*names):
    """One object in another."""
    found = ObjectTree(object_id=names[-1])
    for name in reversed(names[:-1]):
        found = ObjectTree(object_id=name, children=[found])
    return found


A, B, C = ("a" * 64, "b" * 64, "c" * 64)


@pytest.mark.parametrize(
    "wrong",
    [
        tree(A),
        tree(A, B),
        tree(A, B, B),
        tree(A, B, C, "d" * 64),
        tree(A, B, "../c"),
        ObjectTree(object_id=A, children=[tree(B, C)] * 2),
    ],
)
def test_a_tree_that_is_no_messages_is_refused_before_anything_is_kept(office, wrong):
    office.post("east", TASK)
    given = office.next("east")
    with pytest.raises(ValueError, match="one in another"):
        office.announce("east", given.identity, wrong)
    assert office.room("east") == 0


def test_a_message_lives_as_long_as_its_deadline(office, clock):
    """Those of more than an hour ended after an hour."""
    long = Office(KEYS, life=10_000.0, clock=clock)
    for one, lives in ((office, 600.0), (long, 10_000.0)):
        one.enter("east", "of east")
        one.post("east", TASK)
        begun = clock.now
        clock.now = begun + lives - 1.0
        one.hear("east", "of east")
        assert one.next("east") is not None
        one._nodes["east"].asked[next(iter(one._nodes["east"].asked))].given = False
        clock.now = begun + lives
        one.hear("east", "of east")
        assert one.next("east") is None
        clock.now = begun


def test_a_client_that_is_away_for_less_than_a_minute_misses_nothing(office, clock):
    office.post("east", TASK)
    office.lose("east", "of east")
    clock.now += 59.0
    assert list(office.present()) == ["east", "west"]
    assert office.poll(0.0) is None
    office.enter("east", "another process")
    assert office.next("east") is not None


def test_whoever_stays_away_cannot_be_reached(office, clock):
    office.post("east", TASK)
    clock.now += 61.0
    assert office.poll(0.0)[::2] == ("east", "cannot be reached")
    assert list(office.present()) == []
    assert office.poll(0.0) is None
    office.enter("east", "again")
    assert office.next("east") is None


def test_whoever_says_good_bye_is_away_at_once(office):
    office.post("east", TASK)
    office.leave("east", "of another process")
    assert list(office.present()) == ["east", "west"]
    office.leave("east", "of east")
    assert list(office.present()) == ["west"]
    assert office.poll(0.0)[::2] == ("east", "cannot be reached")


def test_a_place_is_free_when_its_process_has_been_silent(office, clock):
    with pytest.raises(TakenError):
        office.enter("east", "another")
    with pytest.raises(TakenError):
        office.hear("east", "another")
    clock.now += 16.0
    office.enter("east", "another")
    with pytest.raises(TakenError):
        office.hear("east", "of east")


def test_the_same_question_again_takes_the_place_of_one_that_nobody_fetched(office):
    """Round 0 asks again and again; what is kept does not grow."""
    for _ in range(100):
        office.post("east", TASK)
    assert len(office._nodes["east"].asked) == 1


def test_a_step_costs_the_same_after_thousands_of_messages(office):
    """Nothing of a message is left when it is answered."""
    for _ in range(2000):
        office.post("east", Message({"task": "t"}, {}))
        assert all(handed(office, "east", office.next("east")))
        assert office.poll(0.0) is not None
    assert not office._nodes["east"].asked
    assert office._come.empty()


def test_a_number_follows_from_the_key_alone():
    numbers = {Office(KEYS).number(name) for name in KEYS}
    assert numbers == {Office(dict(reversed(KEYS.items()))).number(name) for name in KEYS}
    assert len(numbers) == 2
    assert min(numbers) > module.SUPERLINK_NODE_ID


def test_a_server_that_was_stopped_does_not_miss_its_clients():
    """While a machine sleeps nobody can be heard; that counts for none of them."""
    time = [0.0]
    now = awake(lambda: time[0])
    office = Office(KEYS, clock=now)
    office.enter("east", "one")
    for later in range(0, 50, 5):
        time[0] = float(later)
        assert list(office.present()) == ["east"]
    time[0] += 3600.0
    assert list(office.present()) == ["east"]
    assert now() == 45.0
    for _ in range(13):
        time[0] += 5.0
        office.present()
    assert list(office.present()) == []
