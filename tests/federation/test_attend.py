"""A client's loop, over a link that the test breaks: what it does again, what it says, and how long it waits."""

import pytest

from partita.errors import DiskError
from partita.federation.client import attend
from partita.federation.link import Letter, Link, UnreachableError
from partita.io.wire import Message


class Over(Exception):
    """The script is at its end."""


class Script(Link):
    """Does what it is told, call by call: an exception is raised, anything else returned."""

    def __init__(self, *steps):
        self.steps, self.calls, self.closed = list(steps), [], False

    def _step(self, call):
        self.calls.append(call)
        if not self.steps:
            raise Over
        expected, found = self.steps.pop(0)
        assert call[0] == expected
        if isinstance(found, Exception):
            raise found
        return found

    def connect(self):
        return self._step(["connect"])

    def pull(self, timeout):
        return self._step(["pull"])

    def push(self, letter, answer):
        return self._step(["push", letter.identity, answer.header["n"]])

    def close(self):
        self.closed = True


def letter(identity):
    return Letter(identity, Message({"identity": identity}, {}))


def run(*steps, full=0):
    """What a client does over a link of these steps: the link, its sentences, its pauses, and what it has answered.

    So many times it cannot answer, since its disk is full.
    """
    link, said, pauses, asked = Script(*steps), [], [], []

    def handle(message):
        asked.append(message.header["identity"])
        if len(asked) <= full:
            raise DiskError("log", "No space left")
        return Message({"n": len(asked)}, {})

    with pytest.raises(Over), link:
        attend(handle, link, said.append, rest=pauses.append)
    assert link.closed
    return link, said, pauses, asked


def test_a_full_disk_holds_an_answer_back_and_is_not_the_servers_business():
    link, said, pauses, asked = run(("connect", None), ("pull", letter("a")), ("push", None), full=3)
    assert asked == ["a"] * 4
    assert link.calls == [["connect"], ["pull"], ["push", "a", 4], ["pull"]]
    assert len(pauses) == 3
    assert "free some space" in said[0]
    assert len(said) == 2


GONE = UnreachableError("nothing answers")


def test_every_letter_is_answered_once():
    link, said, pauses, asked = run(
        ("connect", None), ("pull", letter("a")), ("push", None), ("pull", None), ("pull", letter("b")), ("push", None)
    )
    assert link.calls == [
        ["connect"], ["pull"], ["push", "a", 1], ["pull"], ["pull"], ["push", "b", 2], ["pull"]
    ]  # fmt: skip
    assert (said, pauses, asked) == ([], [], ["a", "b"])


def test_an_answer_that_could_not_be_handed_in_is_handed_in_again_and_not_computed_again():
    link, said, _, asked = run(
        ("connect", None), ("pull", letter("a")), ("push", GONE), ("connect", GONE), ("connect", None), ("push", None)
    )
    assert asked == ["a"]
    assert link.calls[-2:] == [["push", "a", 1], ["pull"]]
    assert said == ["nothing answers; the client goes on trying.", "connected."]


def test_pauses_grow_to_a_bound_and_begin_anew_after_a_connection():
    _, said, pauses, _ = run(*[("connect", GONE)] * 9, ("connect", None), ("pull", None), ("pull", GONE))
    bounds = [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0, 15.0, 0.5]
    assert len(pauses) == len(bounds)
    assert all(0.8 * bound <= pause <= 1.2 * bound for pause, bound in zip(pauses, bounds, strict=True))
    assert said.count("nothing answers; the client goes on trying.") == 2
    assert said[1] == "connected."


def test_another_trouble_is_said_too():
    _, said, _, _ = run(("connect", GONE), ("connect", UnreachableError("its clock")), ("connect", GONE))
    assert [line.partition(";")[0] for line in said] == ["nothing answers", "its clock", "nothing answers"]
