"""What somebody can do who may write to a mailbox's folder: hold up letters, and no more."""

import errno
import os
import stat
import tracemalloc

import pytest

from federation.test_mailbox import ASK, SAY, TASKS, Kept, files, link, office
from partita.errors import FederationError
from partita.federation.link import UnreachableError
from partita.federation.mailbox.office import ANSWERS


@pytest.fixture
def share(tmp_path):
    (tmp_path / "share").mkdir()
    return tmp_path / "share"


def test_a_link_in_a_new_folders_place_opens_nothing_to_others(share, tmp_path, monkeypatch):
    """Somebody puts a link to the server's own folder where the server has just made one."""
    server, own, make = office(share), tmp_path / "own", os.mkdir
    own.mkdir(mode=0o700)

    def make_and_lose(place, mode=0o777, *, dir_fd=None):
        make(place, mode, dir_fd=dir_fd)
        if place == "east":
            os.rmdir(place, dir_fd=dir_fd)
            os.symlink(own, place, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", make_and_lose)
    server.post("east", ASK)
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert list(own.iterdir()) == []


def test_a_huge_letter_of_a_stranger_takes_no_memory(share):
    client = link(share, "east")
    client.connect()
    folder = share / TASKS / "east"
    folder.mkdir(parents=True)
    with (folder / f"{'0' * 32}.letter").open("wb") as file:
        file.write(b"partita letter\x01" + b"\x68\x00")
        file.truncate(2**26)
    tracemalloc.start()
    try:
        assert client.pull(0.0) is None
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def test_a_letter_that_comes_in_pieces_is_read_when_it_is_whole(share):
    """Programs that copy a folder elsewhere do not write files at once."""
    server, client = office(share), link(share, "east")
    server.post("east", ASK)
    (path,) = files(share, TASKS, "east")
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    assert client.pull(0.0) is None
    assert client.pull(0.0) is None
    path.write_bytes(whole)
    assert client.pull(0.0).message.header == ASK.header


def test_an_answer_that_was_read_counts_though_the_folder_has_gone(share, monkeypatch):
    store = Kept()
    server, client = office(share, store), link(share, "east")
    server.post("east", ASK)
    client.push(client.pull(0.0), SAY)

    def gone(places, name):
        raise FederationError("The folder cannot be used.")

    monkeypatch.setattr(server.shared, "remove", gone)
    assert server.poll(0.0).message.header == SAY.header
    assert server.poll(0.0) is None


def test_a_mount_that_goes_while_a_file_is_read_is_tried_again(share, monkeypatch):
    server, client = office(share), link(share, "east")
    server.post("east", ASK)

    def stale(*_):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as while_gone:
        while_gone.setattr(os, "scandir", stale)
        with pytest.raises(UnreachableError, match="cannot be used"):
            client.pull(0.0)
    letter = client.pull(0.0)
    client.push(letter, SAY)
    with monkeypatch.context() as while_gone:
        while_gone.setattr(os, "fdopen", stale)
        assert server.poll(0.0) is None
    assert server.poll(0.0).message.header == SAY.header


def test_a_client_whose_clock_is_set_back_lives(share, monkeypatch):
    """Its signs of life are other ones each time, whatever its clock says."""
    server, now = office(share), [0.0]
    monkeypatch.setattr(server, "now", lambda: now[0])
    client = link(share, "east")
    for moment, clock in enumerate((10_000, 5_000)):
        with monkeypatch.context() as set_back:
            set_back.setattr("time.time_ns", lambda clock=clock: clock * 10**9)
            client.connect()
        now[0] = 59.0 * moment
        assert "east" in server.present()
    now[0] = 100.0
    assert "east" in server.present()
    assert (share / ANSWERS / "east").is_dir()
