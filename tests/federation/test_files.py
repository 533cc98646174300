"""Files of a federation: who may read them, whose keys are where, when certificates end, and names of all kinds."""

import datetime
import os
import stat
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("cryptography")
from partita.cli import app
from partita.errors import InputError
from partita.federation import certificates, config
from partita.federation.client import Client
from partita.federation.credentials import accept, hand_out, issue_credentials, own_key, revoke
from partita.federation.initialise import initialise
from partita.federation.loop import Loop
from partita.federation.result import account, draw, shown, summary
from partita.federation.serve import serve
from partita.federation.status import read_status
from partita.io import private
from partita.tables.spec import Settings
from support.clinic_files import ILL, clinic, write

ADDRESS = "192.0.2.7:9092"


@pytest.fixture(autouse=True)
def mask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def run(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(done.exception, InputError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def private_keys(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder) for path in files if b"PRIVATE" in path.read_bytes()}


def test_nobody_else_reads_what_the_commands_write(tmp_path):
    study = tmp_path / "study"
    names = ("--client", "east", "--client", "west")
    run("federation", "init", study, "ill ~ age", "--family", "bernoulli", *names, "--address", ADDRESS)
    files = {name: tmp_path / f"{name}.csv" for name in ("east", "west")}
    for path in files.values():
        write(path, clinic(0))
    pairs = [f"{name}={path}" for name, path in files.items()]
    run("rehearse", study, *pairs, "--output", tmp_path / "kept")
    (study / "earlier.log").write_text("as an earlier version left it")
    (study / "earlier.log").chmod(0o644)
    private.tighten(study)
    found = [path for root in (study, tmp_path / "kept") for path in (root, *root.rglob("*"))]
    assert {path.name for path in found} >= {"ledger.sqlite", "result.json", "summary.csv", "ca.key", "earlier.log"}
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_other_files_in_a_federations_folder_stay_as_they_are(tmp_path):
    """Somebody may have put federation.toml where other things are."""
    for name in ("script.sh", "federation.toml"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    private.tighten(tmp_path, ("federation.toml",))
    assert stat.S_IMODE((tmp_path / "script.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "federation.toml").stat().st_mode) == 0o700


def test_links_are_not_followed_where_modes_are_set(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("")
    study = private.folder(tmp_path / "study")
    (study / "link").symlink_to(tmp_path / "elsewhere")
    (study / "file").symlink_to(tmp_path / "elsewhere" / "file")
    private.tighten(study)
    assert stat.S_IMODE((tmp_path / "elsewhere").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "elsewhere" / "file").stat().st_mode) == 0o644


def study_of(folder, names=("east", "west")):
    initialise(folder / "study", list(names), ILL, address=ADDRESS)
    return folder / "study"


def test_a_private_key_leaves_the_server_when_it_is_handed_out(tmp_path):
    study = study_of(tmp_path)
    own = {Path("ca.key"), Path("server.key")}
    keys = {name: Path("clients", name, "keys", name) for name in ("east", "west")}
    assert private_keys(study) == own | set(keys.values())
    assert "only copy of its private key" in hand_out(study, "east", tmp_path / "stick")
    assert private_keys(study) == own | {keys["west"]}
    assert private_keys(tmp_path / "stick") == {Path("keys", "east")}
    assert stat.S_IMODE((tmp_path / "stick" / "keys" / "east").stat().st_mode) == 0o600
    public = (study / "keys" / "east.pub").read_text()
    issue_credentials(study)  # after an edit: the key stays the client's
    assert private_keys(study) == own | {keys["west"]}
    assert (study / "keys" / "east.pub").read_text() == public
    assert "without a key" in hand_out(study, "east", tmp_path / "again")
    with pytest.raises(InputError, match="is there already"):
        hand_out(study, "west", tmp_path / "stick")
    with pytest.raises(InputError, match="no client named 'south'"):
        hand_out(study, "south", tmp_path / "south")
    certificates.private_key(tmp_path / "stick" / "keys" / "east")


def test_a_client_may_make_its_key_and_send_the_public_one(tmp_path):
    study = study_of(tmp_path)
    (study / "clients" / "east" / "keys" / "east").unlink()
    hand_out(study, "east", tmp_path / "east")
    public, told = own_key(tmp_path / "east", "east")
    before = (study / "keys" / "east.pub").read_text()
    assert accept(study, "east", public) == told
    assert (study / "keys" / "east.pub").read_text() == public.read_text() != before
    assert private_keys(tmp_path / "east") == {Path("keys", "east")}
    with pytest.raises(InputError, match="has a key"):
        own_key(tmp_path / "east", "east")
    with pytest.raises(InputError, match="or is that of east"):
        accept(study, "west", public)
    public.write_text(public.read_text().strip() + " " + "what else somebody may write" * 20 + "\n")
    accept(study, "east", public)
    assert "else" not in (study / "keys" / "east.pub").read_text()
    (tmp_path / "wrong.pub").write_text("ssh-ed25519 AAAA" + "x" * 10_000)
    for wrong in (tmp_path / "wrong.pub", tmp_path / "none.pub", tmp_path / "east" / "keys" / "east"):
        with pytest.raises(InputError):
            accept(study, "west", wrong)


def test_a_revoked_key_is_known_no_more_and_never_again(tmp_path):
    study = study_of(tmp_path)
    old = tmp_path / "old.pub"
    old.write_text((study / "keys" / "east.pub").read_text())
    revoke(study, "east")
    assert not (study / "keys" / "east.pub").exists()
    assert not (study / "clients" / "east" / "keys" / "east").exists()
    with pytest.raises(InputError, match="was revoked"):
        accept(study, "east", old)
    with pytest.raises(InputError, match="nothing to revoke"):
        revoke(study, "east")
    issue_credentials(study)
    assert not (study / "keys" / "east.pub").exists()
    certificates.make_key(tmp_path / "new", tmp_path / "new.pub")
    accept(study, "east", tmp_path / "new.pub")


def test_certificates_say_when_they_end_and_are_renewed(tmp_path):
    study = study_of(tmp_path)
    before = {path.name: path.read_bytes() for path in study.iterdir() if path.is_file()}
    assert "server.pem ends on" in run("federation", "certificates", study)
    end = certificates.ends(study)["server.pem"]
    for days, said in ((40, 0), (20, 1), (-1, 1)):
        found = certificates.warnings(study, end - datetime.timedelta(days=days))
        assert len(found) == said
        assert all("--renew`" in sentence for sentence in found)
    assert "has ended" in certificates.warnings(study, end + datetime.timedelta(days=1))[0]
    run("federation", "certificates", study, "--renew")
    after = {path.name: path.read_bytes() for path in study.iterdir() if path.is_file()}
    assert {name for name in before if before[name] != after[name]} == {"server.pem"}
    run("federation", "certificates", study, "--renew-authority")
    assert (study / "clients" / "east" / "ca.crt").read_bytes() == (study / "ca.crt").read_bytes() != before["ca.crt"]
    (study / "ca.key").unlink()
    with pytest.raises(InputError, match=r"no .*ca.key"):
        certificates.renew(study, "192.0.2.7")
    (study / "server.pem").write_text("x")
    with pytest.raises(InputError, match="is not a certificate"):
        certificates.ends(study)


@pytest.mark.parametrize(
    "names", [["a.pub"], ["a.PUB"], ["Leeds", "leeds"], ["../x"], [".x"], ["a/b"], ["\udcff"], [""]]
)
def test_a_name_that_cannot_be_is_refused_before_anything_is_written(names, tmp_path):
    with pytest.raises(InputError):
        initialise(tmp_path / "study", names, ILL, address=ADDRESS)
    assert not (tmp_path / "study").exists()


WORDS = {"none": "\U0001f600", "some": "[red]<b>$\\frac{$", "much": "$$ {x}"}
"""Levels that were markup, a tag and mathematics, if anything read them so."""


def test_texts_beyond_the_basic_plane_and_folders_of_all_kinds(tmp_path):
    """Where the ledger was read by an address, % ? and # cut its name; and TOML was no TOML."""
    folder = tmp_path / "100% sure? #1 \U0001f600 ä"
    settings = Settings("ill ~ `\U0001f9e0 age` + pain", "bernoulli")
    initialise(folder, ["zür\U00020000ich", "west"], settings)
    about = config.load(folder)
    assert about.clients == ("zür\U00020000ich", "west")
    assert about.fit.formula == settings.formula
    assert about.name == folder.name
    paths = {name: tmp_path / f"{k}.csv" for k, name in enumerate(about.clients)}
    for k, path in enumerate(paths.values()):
        rows = [(*row[:2], WORDS[row[2]], *row[3:]) for row in clinic(k)]
        write(path, rows, ("\U0001f9e0 age", "pressure", "pain", "site", "ill", "surname"))
    serve(folder, about, Loop({name: Client(name, about, path) for name, path in paths.items()}))
    assert read_status(folder, about.name, about.clients).ended
    for words in ("\U0001f9e0", *(WORDS[level] for level in ("some", "much"))):
        assert words in shown(folder)
    assert account(folder)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the font has none for it
        draw(folder, summary(folder))
    assert (folder / "result.png").exists()


@pytest.mark.parametrize("formula", ["ill ~ \udcffage", "ill ~ age\x7f"])
def test_a_formula_that_is_no_text_leaves_nothing_behind(formula, tmp_path):
    with pytest.raises(InputError):
        initialise(tmp_path / "study", ["east"], Settings(formula, "bernoulli"))
    assert not (tmp_path / "study").exists()
