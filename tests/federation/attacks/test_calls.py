"""What a server does with calls of strangers, and with those of a client that does not mean well."""

import concurrent.futures
import contextlib
import hashlib
import http.client
import json
import os
import pwd
import resource
import socket
import ssl
import subprocess
import sys
import time

import numpy as np
import pytest
from flwr.app.metadata import Metadata
from flwr.common.serde_utils import metadata_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PullObjectResponse, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

from partita.federation.flower import calls
from partita.federation.flower.objects import chain, wrapped
from partita.federation.flower.signature import private_key, public_bytes, signed
from partita.federation.link import UnreachableError
from partita.io.wire import Message
from support.fleet import echoed

TASK = Message({"kind": "update", "task": "1.0"}, {"x": np.arange(8.0)})
OFFERED = {"activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "pull-object"}
OFFERED |= {"push-messages", "push-object", "confirm-message-received"}


def trusting(place):
    return ssl.create_default_context(cafile=str(place.folder / "ca.crt"))


def connection(place, seconds=30.0):
    host, port = place.address.split(":")
    return http.client.HTTPSConnection(host, int(port), timeout=seconds, context=trusting(place))


def called(place, call, request, name=None, headers=None, method="POST", at=None):
    """Status and body of a call, signed by a client's key if one is named."""
    there = connection(place)
    key = None if name is None else private_key(place.folder / "keys" / name)
    about = {"content-type": "application/protobuf"}
    about |= {} if key is None else signed(key, time.time() if at is None else at)
    body = request if isinstance(request, bytes) else request.SerializeToString()
    path = call if call.startswith("/") else f"/v1/fleet/{call}"
    try:
        there.request(method, path, body, about | (headers or {}))
        answer = there.getresponse()
        return answer.status, answer.read()
    finally:
        there.close()


def node(server, name):
    return Node(node_id=server.number(name))


def entered(place, server, *names):
    """Clients take their places, as stock clients would, and are sent a task."""
    for name in names:
        server.enter(name, "")
        server.post(name, Message(TASK.header | {"for": name}, TASK.arrays))
    return [server.next(name) for name in names]


def resident():
    """Bytes of memory that this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_only_eight_calls_exist(place):
    """Control and runtime calls do not, with a client's key or without."""
    paths = [path for _, path in PROTOBUF_REQUEST_TYPES if path.rpartition("/")[2] not in OFFERED]
    paths += [path for _, path in PROTOBUF_REQUEST_TYPES if not path.startswith("/v1/fleet/")]
    assert any("start-run" in path for path in paths)
    with place.server():
        for path in (*paths, "/", "/docs", "/openapi.json", "/v1/fleet/", "/v1/fleet/../control/start-run", "/metrics"):
            for name in (None, "east"):
                assert called(place, path, b"", name)[0] == 404, path
        assert called(place, "/v1/fleet/pull-messages", b"", method="GET")[0] == 404
        assert called(place, "/health", b"", method="POST")[0] == 404
        assert called(place, "/health", b"", method="GET")[0] == 200


def test_calls_without_a_registered_key_a_good_signature_or_a_good_time_are_refused(place):
    with place.server() as server:
        request = PullMessagesRequest(node=node(server, "east"))
        assert called(place, "pull-messages", request)[0] == 401
        assert called(place, "pull-messages", request, "stranger")[0] == 401
        mine = signed(private_key(place.folder / "keys" / "stranger"), time.time())
        theirs = signed(private_key(place.folder / "keys" / "east"), time.time())
        forged = mine | {name: value for name, value in theirs.items() if "public" in name}
        assert called(place, "pull-messages", request, headers=forged)[0] == 401
        for off in (-400.0, 60.0, 1e9, -1e9):
            assert called(place, "pull-messages", request, "east", at=time.time() + off)[0] == 401
        for odd in ({"flwr-timestamp": "x"}, {"flwr-timestamp": "9" * 5000}, {"flwr-signature": "%"}):
            assert called(place, "pull-messages", request, "east", headers=odd)[0] == 401
        assert called(place, "pull-messages", request, "east")[0] == 200


def test_a_key_acts_for_its_own_node_alone(place):
    """Neither pulling, nor fetching, nor answering for another; nor may a client send anybody a message of its own."""
    with place.server() as server:
        (given, other) = entered(place, server, "east", "west")
        west = node(server, "west")
        assert called(place, "pull-messages", PullMessagesRequest(node=west), "east")[0] == 401
        for identity in chain(other.tree):
            request = PullObjectRequest(node=node(server, "east"), run_id=1, object_id=identity)
            assert not PullObjectResponse.FromString(called(place, "pull-object", request, "east")[1]).object_found
        activated = ActivateNodeRequest(public_key=public_bytes(private_key(place.folder / "keys" / "west")))
        assert called(place, "activate-node", activated, "east")[0] == 401
        for source, to, reply, status in (
            ("west", "server", other.identity, 403),
            ("east", "server", other.identity, 200),
            ("east", "west", "", 200),
            ("east", "west", given.identity + "0", 200),
        ):
            number = 1 if to == "server" else server.number(to)
            about = Metadata(1, "", server.number(source), number, reply, "", time.time(), 60.0, "train.partita")
            parcel = wrapped(Message({"kind": "update", "task": "1.0"}, {}), about)
            envelope = metadata_to_proto(about)
            envelope.message_id = parcel.identity
            request = PushMessagesRequest(
                node=node(server, "east"),
                messages_list=[ProtoMessage(metadata=envelope)],
                message_object_trees=[parcel.tree],
            )
            code, body = called(place, "push-messages", request, "east")
            assert code == status
            if code == 200:
                assert list(PushMessagesResponse.FromString(body).objects_to_push) == []
        assert server.poll(0.0) is None
        assert [len(one.asked) for one in server._nodes.values()] == [1, 1]
        assert server.next("west") is None


def test_the_length_of_a_call_is_known_and_honest(place):
    """Nobody reads a body that is too long, or of which nobody knows how long it is."""
    with place.server() as server:
        (given,) = entered(place, server, "east")
        for call in sorted(OFFERED):
            there = connection(place)
            there.putrequest("POST", f"/v1/fleet/{call}")
            for name, value in signed(private_key(place.folder / "keys" / "east"), time.time()).items():
                there.putheader(name, value)
            there.putheader("content-length", str(2 * 10**6))
            there.endheaders()
            assert there.getresponse().status == 413, call
            there.close()
        there = connection(place)
        there.putrequest("POST", "/v1/fleet/pull-messages")
        for name, value in signed(private_key(place.folder / "keys" / "east"), time.time()).items():
            there.putheader(name, value)
        there.putheader("transfer-encoding", "chunked")
        there.endheaders()
        assert there.getresponse().status == 411
        there.close()
        assert given is not None


@pytest.mark.parametrize("megabytes", [30, pytest.param(600, marks=pytest.mark.slow)])
def test_a_long_body_without_a_key_takes_no_memory(megabytes, place):
    with place.server():
        before, most, piece = resident(), [0], bytes(2**20)
        host, port = place.address.split(":")
        with trusting(place).wrap_socket(socket.create_connection((host, int(port))), server_hostname=host) as there:
            there.sendall(
                b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\ncontent-type: application/protobuf\r\n"
                + f"content-length: {megabytes * 2**20}\r\n\r\n".encode()
            )
            try:
                for _ in range(megabytes):
                    there.sendall(piece)
                    most.append(resident())
            except OSError:
                pass  # it has closed the connection
        assert max(most) - before < 20 * 2**20
        assert called(place, "/health", b"", method="GET")[0] == 200


@pytest.mark.parametrize("many", [40, pytest.param(300, marks=pytest.mark.slow)])
def test_slow_calls_keep_nobody_waiting(many, place):
    """Half have sent a part of their headers, half those of a call with a body that never comes."""
    with place.server() as server:
        host, port = place.address.split(":")
        trust, open_ones = trusting(place), []
        try:
            for index in range(many):
                one = trust.wrap_socket(socket.create_connection((host, int(port))), server_hostname=host)
                one.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\n")
                if index % 2:
                    one.sendall(b"content-length: 100\r\n\r\n")
                open_ones.append(one)
            with place.client("east", echoed):
                waits = []
                while list(server.present()) != ["east"] or not waits:
                    began = time.perf_counter()
                    assert called(place, "/health", b"", method="GET")[0] == 200
                    waits.append(time.perf_counter() - began)
                assert max(waits) < 2.0
                server.post("east", TASK)
                assert server.poll(20.0).message is not None
        finally:
            for one in open_ones:
                one.close()


def test_a_body_that_does_not_come_is_not_waited_for(place, monkeypatch):
    monkeypatch.setattr(calls, "_SECONDS", 0.3)
    with place.server() as server:
        there = connection(place)
        there.putrequest("POST", "/v1/fleet/pull-messages")
        for name, value in signed(private_key(place.folder / "keys" / "east"), time.time()).items():
            there.putheader(name, value)
        there.putheader("content-length", "100")
        there.endheaders()
        assert there.getresponse().status == 408
        there.close()
        assert list(server.present()) == []


def test_calls_of_one_key_at_once_are_bounded(place):
    """Others are not kept waiting by them."""
    with place.server() as server:
        server.enter("east", "")
        server.enter("west", "")
        request = PullMessagesRequest(node=node(server, "east"))

        def pulled(_):
            return called(place, "pull-messages", request, "east", headers={"partita-wait": "2"})[0]

        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            found = pool.map(pulled, range(12))
            time.sleep(0.3)
            west = PullMessagesRequest(node=node(server, "west"))
            assert called(place, "pull-messages", west, "west")[0] == 200
            assert sorted(found) == [200] * 6 + [429] * 6


def named_often(times):
    """An object of Flower's that names one chunk again and again."""
    body = json.dumps({"dtype": "<f8", "shape": [1], "stype": "numpy.ndarray", "arraychunk_ids": [0] * times}).encode()
    return f"Array {'a' * 64} {len(body)}".encode() + b"\0" + body


def test_a_chunk_that_is_named_a_million_times_takes_no_memory(place):
    """Flower joined the chunk as often: one of 3,000 times took 6 GB."""
    with place.server() as server:
        (given,) = entered(place, server, "east")
        content = named_often(330_000)  # as much as there is room for
        assert 900_000 < len(content) < 2**20
        parcel = wrapped(
            Message({"kind": "update", "task": "1.0"}, {}), Metadata(1, "", 1, 1, "", "", 0.0, 1.0, "train")
        )
        outer, middle, _ = chain(parcel.tree)
        name = hashlib.sha256(content).hexdigest()
        deep = ObjectTree(
            object_id=outer, children=[ObjectTree(object_id=middle, children=[ObjectTree(object_id=name)])]
        )
        about = Metadata(1, "", server.number("east"), 1, given.identity, "", time.time(), 60.0, "train.partita")
        request = PushMessagesRequest(
            node=node(server, "east"),
            messages_list=[ProtoMessage(metadata=metadata_to_proto(about))],
            message_object_trees=[deep],
        )
        wide = ObjectTree(object_id=outer, children=[ObjectTree(object_id=name)] * 130)
        odd = PushMessagesRequest(
            node=node(server, "east"),
            messages_list=[ProtoMessage(metadata=metadata_to_proto(about))],
            message_object_trees=[wide],
        )
        before = resident()
        assert called(place, "push-messages", odd, "east")[0] == 413  # a tree of honest size has three objects
        assert called(place, "push-messages", request, "east")[0] == 200
        for identity, one in ((outer, parcel.contents[outer]), (middle, parcel.contents[middle]), (name, content)):
            pushed = PushObjectRequest(node=node(server, "east"), run_id=1, object_id=identity, object_content=one)
            assert called(place, "push-object", pushed, "east")[0] == 200
        delivery = server.poll(5.0)
        assert resident() - before < 50 * 2**20
    assert delivery.message.header["kind"] == "unreadable"


def test_a_message_that_is_not_partitas_leaves_no_trace_at_a_client(place, tmp_path, monkeypatch):
    """A server of some other app: nothing of what it sends is run, stored or looked up."""
    monkeypatch.chdir(tmp_path)
    loaded = set(sys.modules)
    foreign = b"import os; open('trace', 'w')"
    with place.server() as server, place.link("east") as link:
        link.connect()
        server.post("east", TASK)
        (asked,) = server._nodes["east"].asked.values()
        innermost = chain(asked.parcel.tree)[-1]
        asked.parcel.contents[innermost] = f"ConfigRecord  {len(foreign)}".encode() + b"\0" + foreign
        with pytest.raises(UnreachableError, match="cannot be read: This is not a partita message"):
            link.pull(5.0)
    assert list(tmp_path.iterdir()) == []
    assert not {name for name in set(sys.modules) - loaded if name.startswith(("flwr.clientapp", "flwr.simulation"))}


AS_NOBODY = """
import http.client, ssl, sys
folder, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
for path in sys.argv[4:]:
    try:
        open(path, "rb").read()
        print("read", path)
    except OSError:
        pass
trust = ssl.create_default_context(); trust.check_hostname = False; trust.verify_mode = ssl.CERT_NONE
for path in ("/v1/fleet/pull-messages", "/v1/fleet/activate-node", "/v1/fleet/push-object"):
    there = http.client.HTTPSConnection(host, port, context=trust)
    there.request("POST", path, b"")
    print(there.getresponse().status)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_another_account_on_the_machine_can_neither_read_nor_act(place):
    """Of all that is there it finds the port, which answers nobody without a key."""
    secrets = [place.folder / "server.key", *(place.folder / "keys" / name for name in ("east", "west"))]
    for folder in (place.folder, *place.folder.parents):
        if folder.owner() == "root" and folder.name.startswith("pytest-"):
            folder.chmod(0o755)  # so that only the files' own modes keep anybody out
    host, port = place.address.split(":")
    with place.server() as server, place.client("east", echoed):
        done = subprocess.run(
            ["/usr/bin/env", "python3", "-c", AS_NOBODY, place.folder, host, port, *secrets],
            user=pwd.getpwnam("nobody").pw_uid,
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.stdout.split(), done.stderr) == (["401"] * 3, "")
        assert list(server.present()) == ["east"]


def test_a_pile_of_connections_that_never_speak_is_cleared(place, monkeypatch):
    from partita.federation.flower import hosting

    monkeypatch.setattr(hosting, "_HEAD", 0.5)
    with place.server():
        host, port = place.address.split(":")
        quiet = [trusting(place).wrap_socket(socket.create_connection((host, int(port))), server_hostname=host)]
        quiet[0].sendall(b"POST /v1/fleet/pull-mess")
        quiet.append(socket.create_connection((host, int(port))))  # that does not begin TLS
        for one in quiet:
            one.settimeout(10.0)
            with contextlib.suppress(ConnectionError, ssl.SSLError), one:
                assert one.recv(1) == b""
