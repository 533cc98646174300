"""What a federation says of standard deviations that its server cannot check: no rows, and no sums over them, leave."""

import json

import pytest
from typer.testing import CliRunner

from partita.cli import app
from partita.federation import config, fitted
from partita.federation.client import Client
from partita.federation.serve import serve
from support.clinic_files import TOML, clinic, write
from support.weather import FaultyLink

NOTE = (
    "The standard deviations are of independent coefficients, and too small beside correlated columns, which could not "
    'be checked here: set family = "full" under [prior] in the federation.toml of a new run.'
)


@pytest.mark.parametrize("family", ["mean-field", "nearest-mean-field", "full"])
def test_mean_field_is_said_where_standard_deviations_are_printed(family, tmp_path):
    assert "[prior]" not in TOML
    (tmp_path / config.CONFIG_FILE).write_text(TOML + f'\n[prior]\nfamily = "{family}"\n')
    federation = config.load(tmp_path)
    for seed, name in enumerate(federation.clients):
        write(tmp_path / f"{name}.csv", clinic(seed))
    clients = {name: Client(name, federation, tmp_path / f"{name}.csv") for name in federation.clients}
    message = serve(tmp_path, federation, FaultyLink(clients)).message
    printed = CliRunner().invoke(app, ["result", str(tmp_path)]).output
    written = json.loads((tmp_path / "result.json").read_text())["message"]
    status = json.loads(CliRunner().invoke(app, ["status", str(tmp_path), "--json"]).output)["ended"]
    said = family == "mean-field"
    assert [NOTE in text for text in (message, printed, written, status)] == [said] * 4
    assert ("could not be checked here" in str(fitted(tmp_path).posterior.summary())) == said
