"""Messages between a server and its clients over TLS, in one process: what arrives, and what is said if it does not."""

import contextlib
import datetime
import http.server
import os
import select
import socket
import ssl
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from partita.federation import certificates
from partita.federation.flower import dialling, messages, office
from partita.federation.link import UnreachableError
from partita.io.wire import Message
from support.fleet import Place, echoed

TASK = Message({"kind": "update", "task": "1.0"}, {"x": np.arange(6.0).reshape(2, 3), "y": np.array(True)})


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.01)
    return found


def test_a_message_and_its_answer_arrive_whole(place):
    with place.server() as server, place.client("east", echoed):
        until(lambda: list(server.present()) == ["east"])
        server.post("east", TASK)
        name, answer, _ = server.poll(20.0)
    assert (name, answer.header) == ("east", {"kind": "echo", "task": "1.0"})
    np.testing.assert_array_equal(answer.arrays["x"], TASK.arrays["x"])
    assert answer.arrays["y"].dtype == bool


def test_a_message_of_no_arrays_and_many_letters_arrives_too(place):
    long = Message({"kind": "hello", "task": "h", "agreed": {"levels": ["naïve 𝒳"] * 1000}}, {})
    with place.server() as server, place.client("east", lambda message: Message(message.header, {})):
        until(server.present)
        server.post("east", long)
        assert server.poll(20.0).message.header == long.header


def test_whoever_is_not_there_is_offline(place):
    with place.server() as server:
        server.post("west", TASK)
        assert server.poll(0.0)[::2] == ("west", "is offline")
        assert server.poll(0.0) is None


def test_a_client_that_was_expected_finds_its_message_when_it_comes(place):
    """After a restart of the server, clients that had enrolled are not taken for absent."""
    with place.server(expected=["east"]) as server:
        assert list(server.present()) == ["east"]
        server.post("east", TASK)
        with place.client("east", echoed):
            assert server.poll(20.0).message is not None


def test_a_message_that_was_fetched_by_a_client_that_died_is_fetched_again(place):
    with place.server() as server:
        first = place.link("east")
        first.connect()
        server.post("east", TASK)
        assert first.pull(5.0).message.header == TASK.header
        assert first.pull(0.0) is None
        first._closed.set()
        first._http.close()
        server.lose("east", first._session)  # as when its connection breaks while it waits
        with place.client("east", echoed):
            assert server.poll(20.0).message.header["task"] == "1.0"


def test_a_client_whose_connection_broke_fetches_its_message_again(place):
    with place.server() as server, place.link("east") as link:
        link.connect()
        server.post("east", TASK)
        link.pull(5.0)
        link.connect()
        assert link.pull(5.0).message.header == TASK.header


def test_a_killed_client_is_noticed_at_once_while_it_waits(place):
    """Its place is free, so that it may be started again without a pause."""
    with place.server() as server:
        link = place.link("east")
        link.connect()
        thread = threading.Thread(target=pulled, args=[link])
        thread.start()
        time.sleep(0.5)  # until it waits
        link._closed.set()
        for connection in link._http._transport._pool.connections:
            connection._connection._network_stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        thread.join()
        until(lambda: server._nodes["east"].held == float("-inf"))
        with place.client("east", echoed):
            assert list(server.present()) == ["east"]


def pulled(link):
    with contextlib.suppress(UnreachableError):
        link.pull(9.0)


def test_a_server_that_was_started_again_goes_on_with_a_connected_client(place):
    with place.link("east") as link:
        with place.server() as server:
            link.connect()
            server.post("east", TASK)
            letter = link.pull(5.0)
        with pytest.raises(UnreachableError, match=r"has broken|nothing answers"):
            link.push(letter, echoed(letter.message))
        with place.server() as server:
            link.push(letter, echoed(letter.message))  # which this server does not wait for
            assert server.poll(0.0) is None
            server.post("east", TASK)
            link.push(link.pull(5.0), TASK)
            assert server.poll(5.0).message.header == TASK.header


def test_an_answer_is_taken_once(place):
    with place.server() as server, place.link("east") as link:
        link.connect()
        server.post("east", TASK)
        letter = link.pull(5.0)
        about = dict(link._open)
        for _ in range(3):
            link._open = dict(about)
            link.push(letter, echoed(letter.message))
        assert server.poll(5.0).message is not None
        assert server.poll(0.0) is None
        assert not server._nodes["east"].asked


def test_a_second_process_of_a_client_is_told_that_its_name_is_taken(place):
    with place.server(), place.link("east") as first, place.link("east") as second:
        first.connect()
        with pytest.raises(UnreachableError, match="a client of this name is at work already: stop the other"):
            second.connect()
        first.close()
        second.connect()


def test_a_client_says_that_nothing_answers(place):
    with (
        place.link("east") as link,
        pytest.raises(UnreachableError, match=r"nothing answers at 127.* yet: start the server"),
    ):
        link.connect()


def test_a_client_whose_key_is_not_registered_says_so(place):
    with (
        place.server(),
        place.link("stranger") as link,
        pytest.raises(UnreachableError, match=r"does not accept its key \(its key is not registered\): use the folder"),
    ):
        link.connect()


def heartbeat(link):
    return messages.SendNodeHeartbeatRequest(node=link._node), messages.SendNodeHeartbeatResponse


@pytest.mark.parametrize(("ahead", "said"), [(-7380.0, "2.0 hours|2.1 hours ahead"), (400.0, "7 minutes behind")])
def test_a_client_says_how_far_its_clock_is_off(place, ahead, said, monkeypatch):
    real = time.time
    with place.server(now=lambda: real() + ahead) as server, place.link("east") as link:
        with pytest.raises(UnreachableError, match=rf"this machine's clock is ({said}).* the server's: set the one"):
            link.connect()
        link.connect()  # by the server's clock, since nobody knows whose is wrong
        assert list(server.present()) == ["east"]
        monkeypatch.setattr(dialling.time, "time", lambda: real() + ahead)
        assert link.pull(0.0) is None  # both are right now, and nothing is said
        monkeypatch.setattr(dialling.time, "time", real)
        link._call("send-node-heartbeat", *heartbeat(link))  # which is told though its own thread finds it
        with pytest.raises(UnreachableError, match=rf"this machine's clock is ({said})"):
            link.pull(0.0)
        assert link.pull(0.0) is None


def test_a_servers_clock_that_is_set_changes_nothing(place, monkeypatch):
    """It goes on from the time at which the server began; so do the lives of messages, and who is there."""
    real = time.time
    with place.server() as server, place.link("east") as link:
        link.connect()
        for jump in (7200.0, -7200.0):
            monkeypatch.setattr(office.time, "time", lambda jump=jump: real() + jump)
            server.post("east", TASK)
            monkeypatch.setattr(office.time, "time", real)  # the client has a clock of its own
            letter = link.pull(5.0)
            link.push(letter, echoed(letter.message))
            assert server.poll(5.0).message is not None
            assert list(server.present()) == ["east"]


def test_another_federations_server_is_none_of_its_own(place, tmp_path):
    other = Place(tmp_path)
    other.address = place.address
    with (
        other.server(),
        place.link("east") as link,
        pytest.raises(UnreachableError, match=r"is not the server of this federation \(.*\): correct server.address"),
    ):
        link.connect()


def test_a_clock_by_which_the_certificate_is_not_good_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "_BEFORE", datetime.timedelta(hours=-2))  # by a clock two hours slow, it is so
    other = Place(tmp_path)
    with (
        other.server(),
        other.link("east") as link,
        pytest.raises(UnreachableError, match=r"by this machine's clock .* is not good .*: set the clock"),
    ):
        link.connect()


class Home(http.server.BaseHTTPRequestHandler):
    """The page of some other program."""

    def do_POST(self):
        self.send_error(404)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("secure", [True, False])
def test_another_program_at_the_address_is_not_the_server(place, secure):
    host, port = place.address.split(":")
    with http.server.ThreadingHTTPServer((host, int(port)), Home) as there:
        if secure:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(place.folder / "server.pem", place.folder / "server.key")
            there.socket = context.wrap_socket(there.socket, server_side=True, do_handshake_on_connect=False)
        there.handle_error = lambda *_: None
        thread = threading.Thread(target=there.serve_forever, args=[0.05])
        thread.start()
        try:
            with (
                place.link("east") as link,
                pytest.raises(UnreachableError, match="is not the server of this federation"),
            ):
                link.connect()
        finally:
            there.shutdown()
            thread.join()


class Proxy(threading.Thread):
    """An HTTP proxy that makes tunnels, and counts them."""

    def __init__(self):
        super().__init__(daemon=True)
        self.there, self.tunnels = socket.create_server(("127.0.0.1", 0)), []
        self.url = f"http://127.0.0.1:{self.there.getsockname()[1]}"

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.there.accept()
                threading.Thread(target=self.tunnel, args=[near], daemon=True).start()

    def tunnel(self, near):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += near.recv(1)
        to = head.split()[1].decode()
        self.tunnels.append(to)
        far = socket.create_connection(to.split(":"))
        near.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            for one in select.select([near, far], [], [])[0]:
                data = one.recv(65536)
                if not data:
                    return near.close() or far.close()
                (far if one is near else near).sendall(data)


def test_a_client_dials_through_a_proxy(place):
    proxy = Proxy()
    proxy.start()
    with place.server() as server, place.client("east", echoed, proxy=proxy.url):
        until(server.present)
        server.post("east", TASK)
        assert server.poll(20.0).message is not None
    assert set(proxy.tunnels) == {place.address}
    proxy.there.close()


def test_the_environment_names_a_proxy_too(place, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with place.server(), place.link("east") as link, pytest.raises(UnreachableError):
        link.connect()


def test_a_sites_own_authority_is_trusted_where_its_proxy_inspects_what_passes(place, tmp_path):
    """The certificate that is met is then the site's, not the federation's."""
    site = Place(tmp_path)
    with site.server():
        inspected = dialling.FleetLink(
            site.address, place.folder / "ca.crt", site.folder / "keys" / "east", further=site.folder / "ca.crt"
        )
        with inspected as link:
            link.connect()


def test_nothing_listens_in_a_client(place):
    with place.server(), place.link("east") as link:
        before = listening_sockets()
        link.connect()
        assert listening_sockets() == before


def listening_sockets():
    """The TCP ports at which this process listens; others come and go beside it."""
    own = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(os.readlink(path))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sorted(row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own)
