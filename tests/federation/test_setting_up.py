"""How a federation is set up: addresses, columns of an example file, and what is not overwritten."""

import csv
import dataclasses
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import partita as pt
from partita.cli import app
from partita.data.preprocess import federated
from partita.errors import InputError, MissingExtraError
from partita.federation import certificates, config
from partita.federation.beginning import beginning
from partita.federation.client import Client
from partita.federation.initialise import initialise
from partita.federation.rehearse import Rehearsal
from partita.federation.rows import read
from partita.federation.serve import serve
from support.clinic_files import COLUMNS, ILL, TOML, clinic, write
from support.weather import FaultyLink

ROOT = Path(__file__).parents[2]


def init(folder, *examples, **options):
    """`partita federation init` with these example files; what it prints."""
    arguments = [
        "federation",
        "init",
        folder,
        ILL.formula,
        "--family",
        ILL.family,
        "--client",
        "east",
        "--client",
        "west",
    ]
    for example in examples:
        arguments += ["--example", example]
    for name, value in options.items():
        arguments += [f"--{name}", value]
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


ADDRESSES = {
    "0.0.0.0": "not a host and a port",
    "0.0.0.0:9092": "no address that clients can reach",
    "[::]:9092": "no address that clients can reach",
    "127.0.0.1:99999": "not a host and a port",
    "127.0.0.1:0": "not a host and a port",
    "127.0.0.1": "not a host and a port",
    "data.example.org": "not a host and a port",
    ":9092": "not a host and a port",
    "::1:9092": "not a host and a port",
    "data example.org:9092": "not a host and a port",
    "daten.bücher.example:9092": "not a host and a port",
    f"{'x' * 64}.example.org:9092": "not a host and a port",
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_that_cannot_be_is_told_and_leaves_nothing_behind(address, tmp_path):
    """There was a traceback and half a folder, or the port was taken as it was."""
    write(tmp_path / "east.csv", clinic(0))
    with pytest.raises(InputError, match=ADDRESSES[address]):
        initialise(tmp_path / "study", ["east"], ILL, [tmp_path / "east.csv"], address)
    assert not (tmp_path / "study").exists()
    with pytest.raises(InputError, match=ADDRESSES[address]):
        config.read(f'{TOML}[server]\naddress = "{address}"\n'.encode(), "federation.toml")


@pytest.mark.parametrize("address", ["localhost:1", "127.0.0.1:65535", "[::1]:9092", "10.0.0.7:9092", "a-b.example:9"])
def test_an_address_that_can_be_is_taken(address):
    text = f'{TOML}[server]\naddress = "{address}"\n'
    assert config.read(text.encode(), "federation.toml").server.address == address


def test_where_certificates_cannot_be_made_there_is_no_federation(tmp_path, monkeypatch):
    """It can be made again when they can."""
    about = (["east"], ILL, (), "10.0.0.7:9092")
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "make_authority", lambda *_: (_ for _ in ()).throw(MissingExtraError("it", "x")))
        with pytest.raises(MissingExtraError):
            initialise(tmp_path / "study", *about)
    initialise(tmp_path / "study", *about)
    assert (tmp_path / "study" / "server.key").exists()


def test_columns_that_the_formula_does_not_name_are_not_read(tmp_path):
    """Names and keys of patients have no way in."""
    rows = [(1000 + 7 * k % 211, f"patient {k}", *row[:5]) for k, row in enumerate(clinic(0))]
    for name in ("east", "west"):
        write(tmp_path / f"{name}.csv", rows, ("key", "name", *COLUMNS[:5]))
    said = init(tmp_path / "study", tmp_path / "east.csv", tmp_path / "west.csv")
    federation = config.load(tmp_path / "study")
    assert set(beginning(federation).read(tmp_path / "east.csv", "east").rows.columns) == {
        "ill", "age", "pressure", "pain",
    }  # fmt: skip
    assert "patient" not in (tmp_path / "study" / "federation.toml").read_text() + said


def test_levels_of_one_site_do_not_stop_the_others(tmp_path):
    """Those of all sites are agreed on in round 0."""
    own = {
        "east": [row for row in clinic(0) if row[2] != "much"],
        "west": [row for row in clinic(1) if row[2] != "none"],
    }
    files = {name: tmp_path / f"{name}.csv" for name in own}
    for name, path in files.items():
        write(path, [row[:5] for row in own[name]], COLUMNS[:5])
    study = tmp_path / "study"
    init(study, files["east"])
    federation = config.load(study / "clients" / "west")
    federation = dataclasses.replace(federation, run=config.Run(rounds=2))
    there = serve(study, federation, FaultyLink({name: Client(name, federation, files[name]) for name in files}))
    assert there.state.names == ("east", "west")
    with (study / "summary.csv").open() as file:
        names = [row["name"] for row in csv.DictReader(file)]
    assert [name for name in names if name.startswith("pain")] == ["pain[T.much]", "pain[T.none]"]
    here = Rehearsal.read(federation, files).run()
    np.testing.assert_allclose(there.posterior.mean, here.posterior.mean, rtol=1e-8)


def test_an_example_without_a_column_of_the_formula_is_told(tmp_path):
    write(tmp_path / "east.csv", clinic(0))
    write(tmp_path / "west.csv", [row[1:] for row in clinic(0)], COLUMNS[1:])
    with pytest.raises(InputError, match=r"The example west.csv does not fit the formula: .* no column 'age'"):
        init(tmp_path / "study", tmp_path / "east.csv", tmp_path / "west.csv")
    assert not (tmp_path / "study").exists()


def test_a_site_with_another_level_is_told_what_to_do(tmp_path):
    data = config.read(TOML.encode(), "federation.toml").data
    write(tmp_path / "east.csv", [(*row[:2], "awful", *row[3:]) for row in clinic(0)])
    with pytest.raises(InputError, match=r"add them to data.categories .* or write \[\] there") as caught:
        read(tmp_path / "east.csv", data)
    assert """the line is "pain" = ["none", "some", "much", "awful"]""" in str(caught.value)
    assert "awful" not in caught.value.public


def test_rows_to_predict_need_no_response(tmp_path):
    data = config.read(TOML.encode(), "federation.toml").data
    write(tmp_path / "east.csv", clinic(0))
    agreed = federated([read(tmp_path / "east.csv", data)])
    write(tmp_path / "new.csv", [row[:4] for row in clinic(0)], COLUMNS[:4])
    study = pt.federation.FederationResult(None, agreed, data)
    np.testing.assert_array_equal(study.table(tmp_path / "new.csv").x, study.table(tmp_path / "east.csv").x)
    assert np.isnan(study.table(tmp_path / "new.csv").y).all()
    with pytest.raises(InputError, match="'ill' is missing"):
        read(tmp_path / "new.csv", data)
    assert np.isnan(pt.Frame.build({"age": np.zeros(3)}).y).all()


EXTRAS = {
    extra
    for path in (ROOT / "src").rglob("*.py")
    for extra in re.findall(r'MissingExtraError\("[^"]+", "(\w+)"\)', path.read_text())
}


@pytest.mark.parametrize("extra", sorted(EXTRAS | {"flower", "dask", "data"}))
def test_a_missing_extra_is_installed_as_the_pages_say(extra):
    assert extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    command = re.search(r"pip install '[^']+'", str(MissingExtraError("It", extra)))
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert any(command.group() in page.read_text() for page in pages)


def test_no_other_message_says_how_to_install_an_extra():
    """The packages are installed from a checkout, and not by their names."""
    for path in (*(ROOT / "src").rglob("*.py"), *(ROOT / "experiments" / "src").rglob("*.py")):
        assert not re.search(r"partita(-experiments)?\[", path.read_text()), path


def test_an_example_overwrites_nobodys_file(tmp_path):
    (tmp_path / "north.csv").write_text("my own\n")
    command = [sys.executable, str(ROOT / "examples" / "clinics" / "make_rows.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "north.csv is there already" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["north.csv"]
    assert (tmp_path / "north.csv").read_text() == "my own\n"
    (tmp_path / "north.csv").unlink()
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0
    with (tmp_path / "north.csv").open() as file:
        assert len(list(csv.reader(file))) == 201
