"""Runs the contract tests of Flower against its newest version, in an environment of its own.

    python tests/newest_flower.py [version]

Says so, with exit code 3, where that version cannot be installed; else the exit code is that of the tests.
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
CANNOT = 3


def newest(python: str, place: str) -> str:
    """The newest version there is; left to itself, pip would take an older one where this one's dependencies lack."""
    command = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place, "flwr"]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = Path(place).glob("flwr-*")
    return wheel.name.split("-")[1]


def main(version: str = "") -> int:
    """Installs partita with its own dependencies, then Flower beyond its pin, and runs the tests."""
    with tempfile.TemporaryDirectory() as place:
        venv.create(place, with_pip=True)
        python = str(Path(place) / "bin" / "python")
        flower = f"flwr=={version or newest(python, place)}"
        for wanted in (["-e", f"{ROOT}[test]"], [flower]):
            done = subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], capture_output=True, text=True)
            if done.returncode:
                why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
                print(f"{wanted[-1]} cannot be installed here: {why}")
                return CANNOT
        shown = subprocess.run([python, "-m", "pip", "show", "flwr"], capture_output=True, text=True, check=True)
        print(shown.stdout.splitlines()[1])
        tests = "tests/federation/flower/test_contract.py"
        return subprocess.run([python, "-m", "pytest", "-n", "0", "-q", tests], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
