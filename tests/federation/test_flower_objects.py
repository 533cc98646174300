"""Answers as Flower's own code builds them from what clients described: any may fail, and only itself."""

import hashlib
import time

import pytest

pytest.importorskip("flwr")
from flwr.app import Error
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, ObjectTree, PullObjectResponse
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import Metadata as ProtoMetadata
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import GetNodesResponse, PullAppMessagesResponse, PushAppMessagesResponse
from flwr.supercore.constant import HEAD_BODY_DIVIDER, HEAD_VALUE_DIVIDER
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from partita.engines.flower import FlowerLink, to_records
from partita.io.wire import Message

NODES = {"east": 11, "west": 12}


@pytest.fixture(autouse=True)
def inside_a_run(monkeypatch):
    """Flower makes messages only in a process that belongs to one of its runs."""
    for number in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, number, 1)


class Superlink:
    """A stand-in for Flower's server, which hands an answer over once, and tells nobody whether it can be built."""

    def __init__(self):
        self.answers, self.given, self.unasked, self.objects, self.down = {}, set(), [], {}, False

    def GetNodes(self, request):
        if self.down:
            raise ConnectionError
        return GetNodesResponse(nodes=[NodeInfo(node_id=node) for node in NODES.values()])

    def PushMessages(self, request):
        return PushAppMessagesResponse(message_ids=[message.metadata.message_id for message in request.messages_list])

    def PushObject(self, request):
        raise AssertionError("it has not asked for any")

    def PullMessages(self, request):
        if self.down:
            raise ConnectionError
        (identity,) = request.message_ids
        roots = [self.unavailable(identity)] if identity in self.given else []
        if identity in self.answers:
            self.given.add(identity)
            roots.append(self.answers.pop(identity))
        roots, self.unasked = roots + self.unasked, []
        trees = [ObjectTree(object_id=one) for one in self.objects]
        return PullAppMessagesResponse(
            messages_list=[ProtoMessage(metadata=ProtoMetadata(message_id=root)) for root in roots],
            message_object_trees=[ObjectTree(object_id=root, children=trees) for root in roots],
        )

    def PullObject(self, request):
        content = self.objects[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request):
        return ConfirmMessageReceivedResponse()

    def keep(self, kind, children, body):
        """Stores an object as it is described, and returns its name."""
        head = HEAD_VALUE_DIVIDER.join([kind, ",".join(children), str(len(body))])
        content = head.encode() + HEAD_BODY_DIVIDER + body
        name = hashlib.sha256(content).hexdigest()
        self.objects[name] = content
        return name

    def reply(self, identity, **what):
        """Stores an honest answer to a message, and returns its name."""
        about = Metadata(1, "", NODES["west"], SUPERLINK_NODE_ID, identity, "", time.time(), 60.0, "train.partita")
        answer = make_message(about, **(what or {"content": to_records(Message({"kind": "ell"}, {}))}))
        self.objects |= {name: one.deflate() for name, one in get_all_nested_objects(answer).items()}
        return answer.object_id

    def unavailable(self, identity):
        """What Flower says of a message that it knows nothing of, such as one that was answered."""
        return self.reply(identity, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, "unavailable"))


@pytest.fixture
def superlink():
    return Superlink()


@pytest.fixture
def link(superlink):
    """A link by which each client was sent a task."""
    grid = HttpGrid(token="token")
    grid._client = superlink
    grid.set_run(Run.create_empty(1))
    found = FlowerLink(grid, list(NODES), NODES)
    for name in found.present():
        found.post(name, Message({"kind": "update", "task": f"task of {name}"}, {}))
    return found


def posted(link, name):
    return next(identity for identity, about in link._pending.items() if about.name == name)


DESCRIBED = {
    "an array in place of a message": lambda keep: keep("Array", [], b"{}"),
    "records in place of a message": lambda keep: keep("RecordDict", [], b"{}"),
    "a message without content": lambda keep: keep("Message", [], b""),
    "a message that holds no records": lambda keep: keep("Message", [keep("ArrayChunk", [], b"")], b""),
    "a message whose content is not there": lambda keep: keep("Message", ["0" * 64], b""),
    "a message that is none": lambda keep: keep("Message", [], b"\xff\xff"),
    "a class that is none": lambda keep: keep("CustomDataClass", [], b""),
}


def polled(link):
    """All that is there after some looks at it."""
    return {letter.name: letter for letter in (link.poll(0.0) for _ in range(4)) if letter is not None}


@pytest.mark.parametrize("name", DESCRIBED)
def test_an_unreadable_object_fails_only_its_sender(name, superlink, link):
    east, west = posted(link, "east"), posted(link, "west")
    superlink.answers = {east: DESCRIBED[name](superlink.keep), west: superlink.reply(west)}
    letters = polled(link)
    assert letters["west"].message.header["kind"] == "ell"
    header = letters["east"].message.header
    assert (header["kind"], header["task"]) == ("unreadable", "task of east")
    assert "not a partita message" in header["reason"]
    assert not link._pending
    assert not link._failed


@pytest.mark.parametrize("name", DESCRIBED)
def test_an_unrequested_message_fails_no_client(name, superlink, link):
    """A client may send it at any time, and it comes with whatever is pulled next."""
    superlink.unasked = [DESCRIBED[name](superlink.keep)]
    assert not polled(link)
    assert not link._failed
    superlink.answers = {identity: superlink.reply(identity) for identity in link._pending}
    letters = polled(link)
    assert {letter.message.header["kind"] for letter in letters.values()} == {"ell"}
    assert set(letters) == set(NODES)


def test_a_reply_to_another_clients_message_is_ignored(superlink, link):
    east, west = posted(link, "east"), posted(link, "west")
    superlink.answers, superlink.unasked = {east: superlink.reply(west)}, [superlink.reply(""), superlink.reply(west)]
    letters = polled(link)
    assert letters["east"].message is None
    assert set(letters) == {"east"}
    assert set(link._pending) == {west}


def test_a_connection_error_is_not_counted_as_an_invalid_answer(superlink, link):
    link._looked, superlink.down = link.now() + 1000.0, True
    with pytest.raises(ConnectionError):
        link.poll(0.0)
    assert len(link._pending) == 2
    assert not link._failed
