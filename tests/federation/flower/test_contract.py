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
from flwr.app.message import make_message, remove_content_from_message
from flwr.app.metadata import Metadata
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, TaskType
from flwr.supercore.error import http_error_translator
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router
from flwr.supernode.fleet_http_connection import http_request_response
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from partita.federation.flower.objects import ENTRY, unwrapped, wrapped
from partita.federation.flower.signature import public_bytes
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
        about.__dict__["_message_id"] = parcel.identity
        envelope = remove_content_from_message(types.SimpleNamespace(metadata=about, has_error=lambda: False))
        session = self.state.start_session(self.run)
        stored, missing = self.state.store_message_and_object_tree(envelope, parcel.tree, session)
        assert stored
        for identity in missing:
            self.state.store_object(self.run, session, identity, parcel.contents[identity])
        return parcel.identity

    def answer(self, identity):
        """The answer to a message, from the objects that were handed in."""
        (envelope,) = self.state.get_message_res({identity}, self.run)
        assert not envelope.has_error()
        store, name = self.state.object_store, envelope.metadata.message_id
        tree = store.get_object_tree(name)
        contents = {one.object_id: store.get(one.object_id) for one in iterate_object_tree(tree)}
        return unwrapped(tree, contents, 10**6, 10**6)

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
