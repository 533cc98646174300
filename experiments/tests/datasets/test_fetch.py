"""Downloads against servers on this machine: whole, resumed, broken off, wrong and unreachable."""

import contextlib
import functools
import hashlib
import io
import re
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from partita import InputError
from partita_experiments.datasets import fetch as module
from partita_experiments.datasets.fetch import Remote, cache, fetch, find

CONTENT = np.random.default_rng(0).bytes(300_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves `content`, ranges of it if asked to and able to, and hangs up after `cut` bytes,
    `stall` seconds later; keeps the requests."""

    def __init__(self, *args, log, content=CONTENT, ranges=True, cut=None, stall=0.0, length=True, **kwargs):
        self.log, self.content, self.ranges = log, content, ranges
        self.cut, self.stall, self.length = cut, stall, length
        super().__init__(*args, **kwargs)

    def do_GET(self):
        asked = self.headers.get("Range")
        self.log.append(asked)
        if self.path != "/file.zip":
            return self.send_error(404)
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and self.ranges else 0
        if start >= len(self.content):
            return self.send_error(416)
        body = self.content[start:]
        self.send_response(206 if asked and self.ranges else 200)
        if asked and self.ranges:
            self.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        if self.length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body[: self.cut])
            time.sleep(self.stall)
        return None

    def log_message(self, *_):
        """Says nothing."""


@pytest.fixture
def serve():
    """Starts a server and returns the file's address and the list of requests' ranges."""
    with contextlib.ExitStack() as stack:

        def start(**behaviour):
            log = []
            server = stack.enter_context(
                ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, log=log, **behaviour))
            )
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_port}/file.zip", log

        yield start


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTITA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PARTITA_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def remote(url, sha256=DIGEST):
    return Remote("box", "file.zip", url, sha256)


def target():
    return cache() / "box" / "file.zip"


def part():
    return cache() / "box" / "file.zip.part"


def leave(content):
    part().parent.mkdir(parents=True)
    part().write_bytes(content)


def test_a_file_is_downloaded_once(serve):
    url, log = serve()
    assert fetch(remote(url)) == target()
    assert target().read_bytes() == CONTENT
    assert not part().exists()
    assert fetch(remote(url)) == target()
    assert log == [None]


@pytest.mark.parametrize("length", [True, False])
def test_an_interrupted_download_is_resumed(serve, length):
    leave(CONTENT[:100_001])
    url, log = serve(length=length)
    assert fetch(remote(url)).read_bytes() == CONTENT
    assert log == ["bytes=100001-"]


def test_without_range_requests_the_download_restarts(serve):
    leave(CONTENT[:100_001])
    url, _ = serve(ranges=False)
    assert fetch(remote(url)).read_bytes() == CONTENT


def test_a_partial_file_of_full_length_is_downloaded_again(serve):
    leave(b"x" * len(CONTENT))
    url, log = serve()
    assert fetch(remote(url)).read_bytes() == CONTENT
    assert log == [f"bytes={len(CONTENT)}-", None]


def test_bytes_received_before_a_disconnect_are_kept_and_reused(serve):
    url, _ = serve(cut=170_000)
    with pytest.raises(InputError, match=r"broke off after 170000 of 300000 bytes .* run again to resume"):
        fetch(remote(url))
    assert part().read_bytes() == CONTENT[:170_000]
    assert find("box", "file.zip") is None
    url, log = serve()
    assert fetch(remote(url)).read_bytes() == CONTENT
    assert log == ["bytes=170000-"]


@pytest.mark.parametrize("length", [True, False])
def test_a_stalled_download_times_out_and_keeps_what_was_received(serve, monkeypatch, length):
    monkeypatch.setattr(module, "TIMEOUT", 0.1)
    url, _ = serve(cut=170_000, stall=0.4, length=length)
    with pytest.raises(InputError, match=r"broke off after \d+ .*timed out.* run again to resume"):
        fetch(remote(url))
    kept = part().read_bytes()
    assert 0 < len(kept) <= 170_000
    assert kept == CONTENT[: len(kept)]


def test_a_file_with_a_wrong_digest_is_removed_and_both_digests_are_named(serve):
    wrong = CONTENT[:-1] + b"!"
    url, _ = serve(content=wrong)
    with pytest.raises(InputError, match=f"file.zip .*{hashlib.sha256(wrong).hexdigest()} instead of {DIGEST}"):
        fetch(remote(url))
    assert not part().exists()
    assert not target().exists()


def test_a_partial_download_of_another_file_fails_the_digest_check(serve):
    leave(b"x" * 1000)
    url, _ = serve()
    with pytest.raises(InputError, match="instead of"):
        fetch(remote(url))
    assert fetch(remote(url)).read_bytes() == CONTENT


def refused(url):
    with pytest.raises(InputError) as caught:
        fetch(remote(url))
    message = str(caught.value)
    assert "$PARTITA_DATA/box/file.zip" in message
    assert str(target()) in message
    assert "\n" not in message
    return message


def test_offline_the_error_says_where_to_put_the_file():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        message = refused(f"http://127.0.0.1:{closed.getsockname()[1]}/file.zip")
    assert "refused" in message


def test_a_silent_server_times_out(monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        message = refused(f"http://127.0.0.1:{silent.getsockname()[1]}/file.zip")
    assert "timed out" in message


def test_a_file_missing_on_the_server_is_reported(serve):
    url, _ = serve()
    assert "404" in refused(f"{url}.gone")


def test_urls_other_than_http_are_refused(tmp_path):
    (tmp_path / "file.zip").write_bytes(CONTENT)
    with pytest.raises(InputError, match="http"):
        fetch(remote(f"file://{tmp_path}/file.zip"))


def test_the_users_own_file_comes_first_and_is_not_checked(tmp_path, monkeypatch, serve):
    url, _ = serve()
    fetch(remote(url))
    monkeypatch.setenv("PARTITA_DATA", str(tmp_path / "data"))
    assert find("box", "file.zip") == target()
    own = tmp_path / "data" / "box" / "file.zip"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"mine")
    assert find("box", "file.zip") == own
    assert fetch(remote(url)) == own


def test_the_cache_folder_follows_the_platform_or_the_users_setting(monkeypatch, tmp_path):
    monkeypatch.setenv("PARTITA_CACHE", str(tmp_path / "own"))
    assert cache() == tmp_path / "own"
    monkeypatch.delenv("PARTITA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache() == tmp_path / "xdg" / "partita"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache() == tmp_path / ".cache" / "partita"


def test_a_cache_that_cannot_be_written_to_is_named(tmp_path, monkeypatch, serve):
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("PARTITA_CACHE", str(tmp_path / "taken"))
    with pytest.raises(InputError, match="set PARTITA_CACHE"):
        fetch(remote(serve()[0]))


@pytest.mark.skipif(sys.platform == "win32", reason="there is no lock")
def test_concurrent_fetches_download_a_file_once(serve):
    url, log = serve()
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(fetch, [remote(url)] * 4)) == {target()}
    assert log == [None]
    assert target().read_bytes() == CONTENT


def test_a_progress_bar_is_shown_on_request_and_not_without_a_terminal(serve, monkeypatch):
    url, _ = serve()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    fetch(remote(url))
    assert sys.stderr.getvalue() == ""
    target().unlink()
    fetch(remote(url), progress=True)
    assert "file.zip" in sys.stderr.getvalue()
    assert "300.0/300.0 kB" in sys.stderr.getvalue()
