"""From a CSV file to a report: the time of each part and the memory, for tables of 50 columns in 20 sites.

`python benchmarks/table.py 25000 50000 100000` runs each size in a process of its own, for its memory.
"""

import argparse
import itertools
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_NUMBERS, _SITES = 44, 20


def main() -> None:
    """Runs every size, or with --file the one that a file has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", type=int, default=[25_000, 50_000, 100_000])
    parser.add_argument("--file", type=Path)
    asked = parser.parse_args()
    if asked.file is not None:
        return _measure(asked.file)
    print("| rows | importing | reading | formula | fit | table | report | memory |\n|---|---|---|---|---|---|---|---|")
    for rows in asked.rows:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "table.csv"
            _write(path, rows)
            done = subprocess.run([sys.executable, __file__, "--file", str(path)], check=True, capture_output=True)
            print(f"| {rows:,} | {done.stdout.decode().strip()} |", flush=True)
    return None


def _write(path: Path, rows: int) -> None:
    """A logistic response of ten of 44 numbers and of one of two categories."""
    import numpy as np
    import pandas

    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, _NUMBERS))
    frame = pandas.DataFrame({f"x{k}": x[:, k].round(4) for k in range(_NUMBERS)})
    frame["sex"] = generator.choice(["f", "m"], rows)
    frame["ward"] = generator.choice(list("abcdef"), rows)
    predictor = -1 + x[:, :10] @ generator.normal(0, 0.3, 10) + 0.4 * (frame.sex == "m")
    frame["died"] = (generator.random(rows) < 1 / (1 + np.exp(-predictor))).astype(int)
    frame["hospital"] = [f"h{k}" for k in generator.integers(0, _SITES, rows)]
    frame.to_csv(path, index=False)


def _measure(path: Path) -> None:
    """Prints the seconds of each part, and the most memory that the process had."""
    times = [time.perf_counter()]

    def lap() -> None:
        times.append(time.perf_counter())

    import partita as pt
    from partita.tables.agreement import agreed
    from partita.tables.fit import Fit
    from partita.tables.reading import frame_of, sites_of
    from partita.tables.spec import Settings

    _ = pt.fit
    lap()
    settings = Settings("died ~ " + " + ".join([*(f"x{k}" for k in range(_NUMBERS)), "sex", "ward"]), "bernoulli")
    frame = frame_of(path)
    sites = sites_of(frame, settings.columns, "hospital")
    lap()
    agreed(settings.begun, sites)
    lap()
    del sites
    fit = pt.fit(settings.formula, frame.to_native(), family="bernoulli", sites="hospital")
    assert isinstance(fit, Fit)
    lap()
    fit.table()
    lap()
    fit.report(path.with_suffix(".html"))
    lap()
    parts = [f"{late - soon:.1f} s" for soon, late in itertools.pairwise(times)]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(" | ".join([*parts, f"{memory:.2f} GB"]))


if __name__ == "__main__":
    main()
