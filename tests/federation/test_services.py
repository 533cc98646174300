"""The services in `examples/services` run commands that exist, with options that exist, and as nobody who is root."""

import configparser
import json
import re
from pathlib import Path

import pytest

from docs.test_command_lines import parse

FOLDER = Path(__file__).parents[2] / "examples" / "services"


@pytest.mark.parametrize("name", ["partita-server", "partita-client"])
def test_a_unit_runs_a_command_that_exists(name):
    unit = configparser.ConfigParser(strict=True)
    unit.optionxform = str
    unit.read(FOLDER / f"{name}.service")
    program, _, line = unit["Service"]["ExecStart"].partition(" ")
    assert program == "/opt/partita/bin/partita"
    parse(line)
    assert unit["Service"]["User"] == name
    assert unit["Service"]["UMask"] == "0077"


def test_the_container_runs_commands_that_exist():
    text = (FOLDER / "Containerfile").read_text()
    lines = [" ".join(line.split()) for line in re.findall(r"Z partita (.*)", text)]
    assert len(lines) == 2
    for line in lines:
        parse(line)
    assert json.loads(re.search("ENTRYPOINT (.*)", text)[1]) == ["/opt/partita/bin/partita"]
    assert re.search(r"^USER (\d+)$", text, re.MULTILINE)[1] != "0"
