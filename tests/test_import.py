"""What `import partita` loads: neither what only commands, figures or single data sets need, nor the experiments."""

import json
import subprocess
import sys
from pathlib import Path

import partita

HEAVY = (
    "click",
    "distributed",
    "flwr",
    "matplotlib",
    "numpyro",
    "pandas",
    "polars",
    "rich",
    "scipy",
    "sklearn",
    "torch",
    "typer",
)
PROGRAM = """
import json, sys
import partita
partita.run, partita.methods, partita.LogisticRegression
from partita.server.progress import Progress

with Progress("PVI", 3) as bar:
    bar.update(1, {"residual": 1.0})
print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})))
"""


def test_import_without_a_progress_bar_loads_no_heavy_modules():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout))
    assert "jax" in loaded
    assert loaded.isdisjoint(HEAVY), loaded & set(HEAVY)


def test_the_library_does_not_know_the_experiments():
    sources = list(Path(partita.__file__).parent.rglob("*.py"))
    assert len(sources) > 50
    assert not [path for path in sources if "partita_experiments" in path.read_text(encoding="utf-8")]
