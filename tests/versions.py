"""Runs `smoke.py` with the oldest versions that pyproject.toml allows and with the newest: `make versions`.

The oldest Python that is found goes with the oldest packages, every Python with the newest. Pythons are those on the
path, or those named as arguments. Each run has an environment of its own, which is thrown away.
"""

import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MINORS = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if ":: Python :: 3." in text]


def pythons(named: list[str]) -> list[str]:
    """Interpreters that start, oldest first."""
    candidates = named or [path for minor in MINORS if (path := shutil.which(f"python{minor}"))]
    return [path for path in candidates if _runs([path, "-c", ""])]


def smoke(python: str, requirements: list[str]) -> bool:
    """Whether the smoke test passes with these requirements beside partita's own."""
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        return all(
            _runs(command)
            for command in (
                [python, "-m", "venv", folder],
                [own, "-m", "pip", "install", "--quiet", ROOT, *requirements],
                [own, ROOT / "tests" / "smoke.py"],
            )
        )


def _runs(command: Sequence[object]) -> bool:
    return subprocess.run([str(word) for word in command], check=False).returncode == 0


def main() -> None:
    """Runs all, and ends with an error where one failed."""
    found = pythons(sys.argv[1:])
    if not found:
        sys.exit(f"None of Python {', '.join(MINORS)} is on the path: name interpreters as arguments.")
    oldest = [requirement.replace(">=", "==") for requirement in PROJECT["dependencies"]]
    runs = [(found[0], oldest), *((python, []) for python in found)]
    failed = [f"{python}, {'oldest' if pins else 'newest'}" for python, pins in runs if not smoke(python, pins)]
    sys.exit("\n".join(["Failed:", *failed]) if failed else 0)


if __name__ == "__main__":
    main()
