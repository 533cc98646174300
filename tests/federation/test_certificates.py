"""Certificates hold where they are checked most strictly, and keys are never anybody's but their owner's."""

import contextlib
import os
import socket
import ssl
import stat
import threading

import pytest

pytest.importorskip("cryptography")
from partita.federation.certificates import make_authority
from partita.federation.credentials import issue_credentials
from partita.federation.initialise import initialise
from partita.io import atomic
from support.clinic_files import ILL, clinic, write


@contextlib.contextmanager
def listening(folder):
    """The port of a server that shows the certificate in a folder, and says no more."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")

    def answer():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with contextlib.suppress(ssl.SSLError), context.wrap_socket(connection, server_side=True):
                    pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.7", "hospital.example"])
def test_a_certificate_passes_strict_verification(host, tmp_path):
    """As Python 3.13 does without being asked."""
    make_authority(tmp_path, host)
    trust = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    trust.verify_flags |= ssl.VERIFY_X509_STRICT
    for name in ("localhost", "127.0.0.1", host):
        with (
            listening(tmp_path) as port,
            socket.create_connection(("127.0.0.1", port), 10.0) as plain,
            trust.wrap_socket(plain, server_hostname=name) as connection,
        ):
            assert connection.getpeercert()["subject"] == ((("commonName", host),),)


@pytest.fixture
def modes(monkeypatch):
    """Who could read each file before it was put in its place."""
    found, replace = {}, os.replace

    def noted(source, target):
        found[target] = stat.S_IMODE(os.stat(source).st_mode)
        replace(source, target)

    monkeypatch.setattr(atomic.os, "replace", noted)
    mask = os.umask(0o022)
    yield found
    os.umask(mask)


def test_private_key_files_are_created_readable_by_their_owner_only(tmp_path, modes):
    write(tmp_path / "east.csv", clinic(0))
    study, names = tmp_path / "study", ["east", "west"]
    initialise(study, names, ILL, address="192.0.2.7:9092")
    keys = [study / "clients" / name / "keys" / name for name in names]
    for path in (study / "server.key", study / "ca.key", *keys):
        assert modes[path] == stat.S_IMODE(path.stat().st_mode) == 0o600
    assert modes[study / "server.pem"] == 0o644
    known = [path.read_text() for path in keys]
    issue_credentials(study)
    assert [path.read_text() for path in keys] == known
