"""Four hospitals as client processes with a server on this machine, compared with the same run in one process.

    python examples/hospitals/run.py

The hospitals are those of the Heart Disease data where its files and partita-experiments, which reads them, are at
hand, and otherwise made up.
"""

import contextlib
import csv
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from partita.data.frame import Frame
from partita.federation import config
from partita.federation.initialise import issue_credentials
from partita.federation.rehearse import Rehearsal
from partita.federation.result import summary
from partita.io import atomic

SETTINGS = Path(__file__).with_name("federation.toml")
PARTITA = [sys.executable, "-m", "partita"]
NUMBERS = ("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak")
CATEGORIES = {"cp": ("1", "2", "3", "4"), "restecg": ("0", "1", "2")}
"""Kind of chest pain, and resting ECG."""


def main(
    folder: Annotated[Path, typer.Argument(help="A new folder for the run.")] = Path("hospitals"),
    method: Annotated[str, typer.Option(help="sequential, synchronous or asynchronous.")] = "sequential",
    port: Annotated[int, typer.Option(help="The server's port on this machine.")] = 9092,
) -> None:
    """Runs the federation, then its rehearsal in one process, and compares the posteriors."""
    jax.config.update("jax_enable_x64", True)
    console = Console(highlight=False)
    if folder.exists():
        console.print(f"{folder} is there already: choose another folder.")
        raise typer.Exit(1)
    found = heart_disease()
    frames = found or synthetic_hospitals()
    console.print("The Heart Disease data." if found else "Made-up hospitals: the Heart Disease files are not here.")
    files = {name: folder / "rows" / f"{name}.csv" for name in frames}
    for name, frame in frames.items():
        write(files[name], frame)
    settings = SETTINGS.read_text().replace("sequential", method).replace("9092", str(port))
    atomic.write_text(folder / config.CONFIG_FILE, settings)
    issue_credentials(folder)
    with contextlib.ExitStack() as stack:
        for name, path in files.items():
            log = stack.enter_context((folder / f"{name}.txt").open("w"))
            command = [*PARTITA, "client", str(folder / "clients" / name), "--name", name, "--data", str(path)]
            client = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
            stack.callback(client.terminate)
        code = subprocess.run([*PARTITA, "server", str(folder)], check=False).returncode
        if code:
            raise typer.Exit(code)
    rehearsal = Rehearsal.read(config.load(folder), files)
    result = rehearsal.run()
    there, here = summary(folder), rehearsal.scheme.summary(result, {})
    table = Table("", "five processes", "one process", title="Heart disease, mean ± sd of each coefficient")
    for far, near in zip(there, here, strict=True):
        table.add_row(str(far["name"]), *(f"{row['mean']:+.5f} ± {row['sd']:.5f}" for row in (far, near)))
    console.print(table)
    apart = max(
        abs(far[part] / near[part] - 1) for far, near in zip(there, here, strict=True) for part in ("mean", "sd")
    )
    energies = [rehearsal.free_energy(family) for family in (rehearsal.posterior(folder), result.posterior.q)]
    console.print(f"Largest relative difference of a mean or a standard deviation: {apart:.1e}")
    console.print(f"Free energies: {energies[0]:.6f} and {energies[1]:.6f}, {energies[0] - energies[1]:+.1e} apart")


def heart_disease() -> dict[str, Frame]:
    """The hospitals' training rows; empty if the files are not available locally (they are not downloaded)."""
    try:
        from partita_experiments.datasets.fetch import find
        from partita_experiments.datasets.heart import HEART, HOSPITALS, heart_frames
    except ImportError:
        return {}
    if not (find("heart", f"processed.{HOSPITALS[0]}.data") or find(HEART.folder, HEART.name)):
        return {}
    return {name: both.train for name, both in heart_frames().items()}


def synthetic_hospitals() -> dict[str, Frame]:
    """Hospitals with the columns of the Heart Disease data; patients differ in age, and one measures no cholesterol."""
    about = config.read(SETTINGS.read_bytes(), SETTINGS.name)
    generator = np.random.default_rng(0)
    frames = {}
    for name, rows, age in zip(about.clients, (200, 170, 30, 85), (54, 48, 55, 60), strict=True):
        columns = {column: generator.normal(size=rows).round(3) for column in NUMBERS}
        columns |= {column: generator.choice(levels, rows) for column, levels in CATEGORIES.items()}
        if name == "switzerland":
            columns["chol"] = np.full(rows, np.nan)
        columns["age"] = generator.normal(age, 9, rows).round()
        ill = generator.logistic(size=rows) < (columns["age"] - 54) / 9 + (columns["cp"] == "4")
        frames[name] = Frame.build(columns, ill.astype(float))
    return frames


def write(path: Path, frame: Frame) -> None:
    """Writes a hospital's rows to a CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*frame.columns, "disease"])
        writer.writerows(zip(*frame.columns.values(), frame.y, strict=True))


if __name__ == "__main__":
    typer.run(main)
