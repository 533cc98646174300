"""A folder between server and clients: a letter is read by whom it is for, and counts once, whoever has the folder."""

import os
import threading
import time

import numpy as np
import pytest

pytest.importorskip("cryptography")
from cryptography.hazmat.primitives.asymmetric import ec

from partita.data.disclosure import Limits
from partita.errors import DamagedFileError, FederationError
from partita.federation import config
from partita.federation.client import Client
from partita.federation.link import UnreachableError
from partita.federation.loop import Loop
from partita.federation.mailbox.client import MailboxLink, Reader, answer_by_hand
from partita.federation.mailbox.envelope import Correspondent, largest
from partita.federation.mailbox.office import ANSWERS, BEAT, SERVER, TASKS, Mailbox
from partita.federation.mailbox.shared import Shared
from partita.federation.serve import LEDGER_FILE, serve
from partita.io import wire
from partita.io.wire import Message
from partita.storage.ledger import Ledger
from support.clinic_files import clinic, write

NAMES = ("east", "west")
KEYS = {name: ec.generate_private_key(ec.SECP384R1()) for name in (SERVER, *NAMES, "stranger")}
ASK, SAY = (
    Message({"kind": "update", "task": "t1"}, {"q": np.arange(3.0)}),
    Message({"kind": "update"}, {"a": np.ones(3)}),
)


def pair(name, other, key=None):
    return Correspondent(name, other, KEYS[key or name], KEYS[other].public_key())


class Kept(dict):
    """A store in memory."""

    say, said = dict.__setitem__, dict.get


def office(folder, store=None):
    clients = {name: pair(SERVER, name) for name in NAMES}
    return Mailbox(Shared(folder), lambda: clients, Kept() if store is None else store)


def link(folder, name, place="pins"):
    return MailboxLink(Shared(folder), Reader(pair(name, SERVER), folder.parent / f"{place}-{name}.json"))


@pytest.fixture
def share(tmp_path):
    (tmp_path / "share").mkdir()
    return tmp_path / "share"


def files(share, way, name):
    return sorted(path for path in (share / way / name).iterdir() if path.suffix == ".letter")


def test_a_message_goes_there_and_its_answer_comes_back(share):
    server, client = office(share), link(share, "east")
    client.connect()
    server.post("east", ASK)
    (path,) = files(share, TASKS, "east")
    assert b"update" not in path.read_bytes(), "nobody else reads it"
    letter = client.pull(1.0)
    assert letter.message.header == ASK.header
    client.push(letter, SAY)
    assert client.pull(0.0) is None
    delivery = server.poll(1.0)
    assert delivery.name == "east"
    np.testing.assert_array_equal(delivery.message.arrays["a"], SAY.arrays["a"])
    assert server.poll(0.0) is None
    assert files(share, TASKS, "east") == files(share, ANSWERS, "east") == []


def test_an_answer_on_its_way_counts_after_the_server_starts_again(share):
    store, client = Kept(), link(share, "east")
    office(share, store).post("east", ASK)
    letter = client.pull(1.0)
    client.push(letter, SAY)
    again = office(share, store)
    assert again.poll(0.0) is None  # until the task is sent again, nobody waits for it
    again.post("east", ASK)
    assert again.poll(1.0).message.header == SAY.header
    again.post("east", ASK)
    assert client.pull(1.0).identity != letter.identity


def attacks(share, server, client):
    """What someone with the folder may do to an answer; each gives the bytes to be put in its place."""
    server.post("east", ASK)
    first = client.pull(1.0)
    client.push(first, SAY)
    (earlier,) = files(share, ANSWERS, "east")
    old = earlier.read_bytes()
    assert server.poll(1.0)
    server.post("east", Message(ASK.header | {"task": "t2"}, ASK.arrays))
    letter = client.pull(1.0)
    own, about = pair("east", SERVER), {"run": server.run, "letter": letter.identity}
    good = own.sealed(about, wire.pack(SAY))
    return (
        letter,
        {
            "replayed": old,
            "another's": pair("west", SERVER).sealed(about, wire.pack(SAY)),
            "a stranger's": Correspondent("east", SERVER, KEYS["stranger"], KEYS[SERVER].public_key()).sealed(
                about, b""
            ),
            "of another run": own.sealed(about | {"run": "0" * 32}, wire.pack(SAY)),
            "to another letter": own.sealed(about | {"letter": "0" * 32}, wire.pack(SAY)),
            "cut": good[:-1],
            "changed": good[:-40] + bytes([good[-40] ^ 1]) + good[-39:],
            "its own task": files(share, TASKS, "east")[0].read_bytes(),
            "empty": b"",
            "noise": os.urandom(3000),
            "no message": own.sealed(about, b"x"),
            "too large": own.sealed(about, wire.pack(Message({}, {"a": np.ones(30)}))),
            "long": b"partita letter\x01" + b"\xff\xff" + bytes(1000),
        },
        good,
    )


def test_nothing_but_the_clients_own_answer_to_this_letter_is_taken(share, caplog):
    server, client = office(share), link(share, "east")
    letter, forged, good = attacks(share, server, client)
    path = share / ANSWERS / "east" / f"{letter.identity}.letter"
    for what, data in forged.items():
        path.write_bytes(data)
        assert server.poll(0.0) is None, what
        assert not path.exists(), what
    assert len(caplog.messages) == len(forged)
    path.write_bytes(good)
    assert server.poll(0.0).message.header == SAY.header


def test_links_pipes_folders_and_huge_files_are_no_letters(share, tmp_path, caplog):
    server, client = office(share), link(share, "east")
    client.connect()
    server.post("east", ASK)
    letter = client.pull(1.0)
    path, secret = share / ANSWERS / "east" / f"{letter.identity}.letter", tmp_path / "secret"
    secret.write_bytes(pair("east", SERVER).sealed({"run": server.run, "letter": letter.identity}, wire.pack(SAY)))
    for make in (lambda: path.symlink_to(secret), lambda: os.mkfifo(path), path.mkdir):
        make()
        began = time.monotonic()
        assert server.poll(0.0) is None
        assert time.monotonic() - began < 5.0
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(largest(ASK.size) + 1)
    assert server.poll(0.0) is None
    assert secret.exists()
    # a folder that is a link to elsewhere
    elsewhere = tmp_path / "elsewhere"
    (share / ANSWERS / "east").rename(elsewhere)
    (share / ANSWERS / "east").symlink_to(elsewhere)
    assert server.poll(0.0) is None
    assert "link" in caplog.messages[-1]
    (share / TASKS / "east").rename(tmp_path / "tasks")
    (share / TASKS / "east").symlink_to(tmp_path / "tasks")
    server.post("east", Message({"task": "t9"}, {}))
    assert len(list((tmp_path / "tasks").iterdir())) == 1  # nothing is written beyond the folder
    (share / TASKS / "east").unlink()
    (share / TASKS / "east").mkdir()
    server.poll(0.0)
    assert len(files(share, TASKS, "east")) == 1  # as soon as it can be
    with pytest.raises(UnreachableError, match="link"):
        client.push(letter, SAY)


def test_a_client_reads_letters_of_its_server_and_its_run_only(share):
    server, client, other = office(share), link(share, "east"), link(share, "west")
    server.post("east", ASK)
    (path,) = files(share, TASKS, "east")
    server.post("west", ASK)
    (for_west,) = files(share, TASKS, "west")
    for_west.write_bytes(path.read_bytes())  # swapped
    assert other.pull(0.0) is None
    moved = path.with_name(f"{'0' * 32}.letter")
    moved.write_bytes(path.read_bytes())  # under another name
    path.unlink()
    assert client.pull(0.0) is None
    later = office(share)
    later.post("east", ASK)
    assert client.pull(1.0).message.header == ASK.header
    next_run = office(share)
    next_run.post("east", Message(ASK.header | {"task": "other"}, {}))
    found = [client.pull(0.0) for _ in range(3)]
    assert all(letter is None or letter.message.header == ASK.header for letter in found)
    for name in ("../../evil.letter", "a.letter", ".hidden", "x" * 32 + ".letter"):
        assert not (share / TASKS / "east" / name).exists()
    for k in range(5):
        (share / TASKS / "east" / f"junk-{k}").write_text("")
    assert client.shared.letters((TASKS, "east"))


def test_clients_that_watch_are_away_when_they_stop_and_others_are_served_by_hand(share, monkeypatch):
    server, clock = office(share), [0.0]
    monkeypatch.setattr(server, "now", lambda: clock[0])
    assert server.present() == ["east", "west"]
    client = link(share, "east")
    client.connect()
    old = (share / ANSWERS / "east" / BEAT).read_bytes()
    clock[0] = 10.0
    assert server.present() == ["east", "west"]
    clock[0] = 100.0
    assert server.present() == ["west"]
    (share / ANSWERS / "east" / BEAT).write_bytes(old)  # an old sign of life is none
    clock[0] = 110.0
    assert server.present() == ["west"]
    client.connect()
    clock[0] = 120.0
    assert server.present() == ["east", "west"]
    client.close()


def test_a_letter_may_be_carried_by_hand(share, tmp_path):
    server = office(share)
    server.post("east", ASK)
    (letter,) = files(share, TASKS, "east")
    brought = tmp_path / letter.name
    brought.write_bytes(letter.read_bytes())
    reader = Reader(pair("east", SERVER), tmp_path / "pin.json")
    answer = answer_by_hand(reader, lambda message: SAY, brought, tmp_path / "out")
    (share / ANSWERS / "east").mkdir(parents=True)
    (share / ANSWERS / "east" / answer.name).write_bytes(answer.read_bytes())
    assert server.poll(1.0).message.header == SAY.header
    with pytest.raises(FederationError, match="is there already"):
        answer_by_hand(reader, lambda message: SAY, brought, tmp_path / "out")
    brought.rename(tmp_path / f"{'1' * 32}.letter")
    with pytest.raises(DamagedFileError, match="another's name"):
        answer_by_hand(reader, lambda message: SAY, tmp_path / f"{'1' * 32}.letter", tmp_path / "new")


def test_a_folder_that_is_not_there_is_told(tmp_path):
    client = link(tmp_path / "share", "east")
    with pytest.raises(UnreachableError, match="cannot be used"):
        client.connect()
    with pytest.raises(FederationError, match="cannot be used"):
        office(tmp_path / "share")


def test_a_letter_costs_little(share):
    """The way there and back, of 1 KB and of 1.6 MB, takes less processor time than the 0.3 s that are allowed."""
    server, client = office(share), link(share, "east")
    client.connect()
    for size in (128, 200_000):
        taken = []
        for k in range(5):
            began = time.process_time()
            server.post("east", Message({"task": f"{size}.{k}"}, {"q": np.ones(size)}))
            letter = client.pull(5.0)
            client.push(letter, Message({}, {"q": letter.message.arrays["q"]}))
            assert server.poll(5.0)
            taken.append(time.process_time() - began)
        assert sorted(taken)[2] < 0.3


def test_a_federation_over_a_folder_has_the_posterior_of_one_process(share, tmp_path):
    text = 'name = "clinics"\nclients = ["east", "west"]\n[fit]\nformula = "ill ~ age"\nfamily = "bernoulli"\n'
    about = config.read(text.encode(), "federation.toml")
    clients = {}
    for k, name in enumerate(NAMES):
        write(tmp_path / f"{name}.csv", clinic(k))
        clients[name] = Client(name, about, tmp_path / f"{name}.csv", Limits(1, 1))
    for run in ("here", "there"):
        (tmp_path / run).mkdir()
    here = serve(tmp_path / "here", about, Loop(clients))
    done = threading.Event()

    def attend(name):
        with link(share, name) as own:
            own.connect()
            while not done.is_set():
                letter = own.pull(0.2)
                if letter is not None:
                    own.push(letter, clients[name].handle(letter.message))

    threads = [threading.Thread(target=attend, args=[name]) for name in NAMES]
    for thread in threads:
        thread.start()
    try:
        there = serve(tmp_path / "there", about, office(share, Ledger(tmp_path / "there" / LEDGER_FILE)))
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert wire.equal(here.posterior.q, there.posterior.q)
