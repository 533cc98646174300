"""Flower's own code at the other end: its client's calls to our server, and our client's calls to its server.

What is used of Flower is not its public interface, so that these tests tell which versions fit;
`tests/newest_flower.py` runs them against the newest.
"""

import contextlib
import socket
import threading
import time
import types

import numpy as np
import pytest
import uvicorn
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from fastapi import FastAPI
from flwr.app import ConfigRecord, Error, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.app.metadata import Metadata
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, TaskType
from flwr.supercore.error import http_error_translator
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories
from flwr.superlink.grid.inmemory_grid import InMemoryGrid
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router
from flwr.supernode.fleet_http_connection import http_request_response
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from partita.federation.flower import superlink
from partita.federation.flower.objects import ENTRY, unwrapped, wrapped
from partita.federation.flower.signature import Keyring, public_bytes
from partita.federation.flower.superlink import GridTransport
from partita.io.wire import Message, pack, unpack
from support.fleet import NAMES, echoed

TASK = Message({"kind": "update", "task": "1.0"}, {"x": np.arange(6.0)})


def test_flowers_client_is_served(place):
    """Activation, heartbeat, a message with its objects, the answer with its own, and good-bye."""
    key = load_ssh_private_key((place.folder / "keys" / "east").read_bytes(), None)
    authority = (place.folder / "ca.crt").read_bytes()
    with (
        place.server() as server,
        http_request_response(place.address, False, authority, (key, key.public_key()), max_retries=0) as connection,
    ):
        node, receive, send, _, _, pull, push, confirm = connection
        assert node == server.number("east")
        assert receive() is None
        server.post("east", TASK)
        message, tree = receive()
        run, identity = message.metadata.run_id, message.metadata.message_id
        contents = {one.object_id: pull(run, one.object_id) for one in iterate_object_tree(tree)}
        whole = inflate_object_from_contents(identity, contents)
        confirm(run, identity)
        asked = unpack(whole.content[ENTRY][ENTRY])
        assert asked.header == TASK.header
        about = message.metadata
        reply = Metadata(
            run, "", node, about.src_node_id, identity, about.group_id, time.time(), 60.0, about.message_type
        )
        whole.content[ENTRY][ENTRY] = pack(echoed(asked))
        answer = make_message(reply, whole.content)
        answer.metadata.__dict__["_message_id"] = answer.object_id
        objects = get_all_nested_objects(answer)
        wanted, session = send(remove_content_from_message(answer), get_object_tree(answer), 0.0)
        assert wanted == set(objects)
        for name in wanted:
            push(run, session, name, objects[name].deflate())
        assert server.poll(5.0).message.header == {"kind": "echo", "task": "1.0"}
    assert list(server.present()) == []


class Superlink:
    """Flower's server with its fleet calls: its router, authentication and message store, and one run."""

    def __init__(self, place):
        manager = get_federation_manager(is_simulation=False)
        _, factory = get_objectstore_linkstate_factories(FLWR_IN_MEMORY_DB_NAME, manager)
        self.place, self.state = place, factory.state()
        self.app = FastAPI(
            middleware=[
                Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
                Middleware(ProtobufTranslationMiddleware),
                Middleware(NodeAuthMiddleware),
            ]
        )
        about = {"linkstate_factory": factory, "enable_supernode_auth": True, "fleet_event_log_plugin": None}
        self.app.state._state.update(about)
        self.app.include_router(router)
        keys = {name: load_ssh_private_key((place.folder / "keys" / name).read_bytes(), None) for name in NAMES}
        self.nodes = {
            name: self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public_bytes(key), 0)
            for name, key in keys.items()
        }
        self.run = self.state.create_run(
            "partita/federation", "1.0.0", "0" * 64, {}, "@none/default", None, NOOP_FLWR_AID, str(TaskType.SERVER_APP)
        )
        for task in self.state.get_tasks():
            self.state.claim_task(task.task_id)
            self.state.activate_task(task.task_id)

    def post(self, name, message):
        about = Metadata(self.run, "", SUPERLINK_NODE_ID, self.nodes[name], "", "", time.time(), 60.0, "train.partita")
        parcel = wrapped(message, about)
        self.store(about, parcel.identity, parcel.tree, parcel.contents)
        return parcel.identity

    def store(self, about, identity, tree, contents, late=0.0):
        """A message as a server app pushes it: announced first, and then its objects."""
        about.__dict__["_message_id"] = identity
        envelope = remove_content_from_message(types.SimpleNamespace(metadata=about, has_error=lambda: False))
        session = self.state.start_session(self.run)
        stored, missing = self.state.store_message_and_object_tree(envelope, tree, session)
        assert stored
        time.sleep(late)
        for name in missing:
            self.state.store_object(self.run, session, name, contents[name])

    def answer(self, identity):
        """The answer to a message, from the objects that were handed in."""
        (envelope,) = self.state.get_message_res({identity}, self.run)
        assert not envelope.has_error()
        tree, contents = self.objects(envelope.metadata.message_id)
        return unwrapped(tree, contents, 10**6, 10**6)

    def objects(self, name):
        """The tree of a message's objects, and what they hold."""
        store = self.state.object_store
        tree = store.get_object_tree(name)
        return tree, {one.object_id: store.get(one.object_id) for one in iterate_object_tree(tree)}

    @contextlib.contextmanager
    def running(self):
        folder, (host, port) = self.place.folder, self.place.address.split(":")
        about = {"ssl_certfile": folder / "server.pem", "ssl_keyfile": folder / "server.key", "log_level": "critical"}
        server = uvicorn.Server(uvicorn.Config(self.app, host, int(port), **about))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        try:
            yield self
        finally:
            server.should_exit = True
            thread.join()


class StateGrid(InMemoryGrid):
    """What a server app is given, of a server in this process; objects arrive some time after their message."""

    def __init__(self, superlink):
        self.superlink, self.state, self._run = superlink, superlink.state, types.SimpleNamespace(run_id=superlink.run)

    def push_messages(self, messages):
        for message in messages:
            about = message.metadata
            about.__dict__.update({"_run_id": self.superlink.run, "_src_node_id": SUPERLINK_NODE_ID})
            contents = {name: one.deflate() for name, one in get_all_nested_objects(message).items()}
            self.superlink.store(about, message.object_id, get_object_tree(message), contents, late=0.3)
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids):
        for envelope in self.state.get_message_res(set(message_ids), self.superlink.run):
            name = envelope.metadata.message_id
            while not all((contents := self.superlink.objects(name)[1]).values()):
                time.sleep(0.02)  # they are on their way, which a server app waits for as well
            yield inflate_object_from_contents(name, contents)


def test_a_server_app_reaches_our_clients(place, monkeypatch):
    """Clients are known by their registered keys, and messages arrive though their objects come later."""
    keys = {name: (place.folder / "keys" / f"{name}.pub") for name in NAMES}
    with Superlink(place).running() as flower, place.client("east", echoed):
        for name, number in {"run": flower.run, "task": 1, "node": SUPERLINK_NODE_ID}.items():
            monkeypatch.setattr(TaskIdentity, f"_{name}_id", number)  # as Flower does before it calls an app
        server = GridTransport(StateGrid(flower), lambda: Keyring(keys, time.time).keys, life=60.0)
        while list(server.present()) != ["east"]:
            time.sleep(0.05)
            server._looked = -np.inf
        for task in ("1.0", "1.1"):
            server.post("east", Message(TASK.header | {"task": task}, TASK.arrays))
            name, message, _ = server.poll(20.0)
            assert (name, message.header) == ("east", {"kind": "echo", "task": task})
            np.testing.assert_array_equal(message.arrays["x"], TASK.arrays["x"])
        server.post("west", TASK)
        assert server.poll(0.0) == ("west", None, "is offline")
        assert server.poll(0.0) is None
        server.post("east", TASK)
        keys["east"].unlink()  # the answer of a client whose key is revoked meanwhile does not count
        assert server.poll(2.0) is None


@pytest.mark.parametrize(
    ("content", "elsewhere", "said"),
    [
        ({}, 0, "partita"),
        ({ENTRY: ConfigRecord({ENTRY: "text"})}, 0, "no message"),
        ({ENTRY: ConfigRecord({ENTRY: pack(TASK)})}, 1, "another node"),
        ({ENTRY: ConfigRecord({ENTRY: pack(Message({}, {"x": np.ones(99)}))})}, 0, "bytes"),
    ],
)
def test_a_server_app_says_what_is_no_answer(content, elsewhere, said):
    asked = superlink._Asked("east", b"key", 7, "1.0", 100, np.inf)
    about = Metadata(1, "", 7 + elsewhere, SUPERLINK_NODE_ID, "asked", "", time.time(), 60.0, "train.partita")
    name, message, _ = superlink._opened(asked, make_message(about, RecordDict(content)))
    assert (name, message.header["kind"], message.header["task"]) == ("east", "unreadable", "1.0")
    assert said in message.header["reason"]


def test_what_a_machine_says_of_its_failure_is_one_line():
    asked = superlink._Asked("east", b"key", 7, "1.0", 100, np.inf)
    about = Metadata(1, "", 7, SUPERLINK_NODE_ID, "asked", "", time.time(), 60.0, "train.partita")
    reason = superlink._opened(asked, make_message(about, error=Error(0, "gone\n\x1b[2J" + 999 * "x"))).reason
    assert reason.isprintable()
    assert len(reason) < 250


def test_our_client_is_served_by_flower(place):
    """An organisation's own SuperLink carries our messages as they are."""
    with Superlink(place).running() as superlink, place.link("east") as link:
        link.connect()
        assert link.pull(0.0) is None
        identity = superlink.post("east", TASK)
        letter = link.pull(5.0)
        assert letter.message.header == TASK.header
        link.push(letter, echoed(letter.message))
        found = superlink.answer(identity)
    assert found.header == {"kind": "echo", "task": "1.0"}
    np.testing.assert_array_equal(found.arrays["x"], TASK.arrays["x"])


def test_flower_knows_the_place_that_is_taken(place):
    """Its refusal is understood as ours is."""
    with Superlink(place).running(), place.link("west") as first, place.link("west") as second:
        first.connect()
        with pytest.raises(Exception, match="a client of this name is at work already"):
            second.connect()


def test_a_port_is_free_again(place):
    """The servers above have left it."""
    host, port = place.address.split(":")
    with socket.create_server((host, int(port))):
        pass
