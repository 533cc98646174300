"""Epilepsy, from the R package MASS: counts of seizures of 59 patients in four periods."""

import csv
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from partita.errors import InputError
from partita_experiments.datasets.fetch import find

__all__ = ["Epilepsy", "epilepsy"]


class Epilepsy(NamedTuple):
    """Rows of patients, four each, in the order of periods."""

    x: Float[np.ndarray, "n 3"]
    """Treatment by progabide, and the logarithms of seizures before the trial and of age, centred."""
    y: Float[np.ndarray, " n"]
    """How many seizures there were in a period of two weeks."""
    patient: Int[np.ndarray, " n"]


def epilepsy() -> Epilepsy:
    """How many seizures does a patient have? 236 rows of 59 patients, from `counts/MASS_epil.csv`: MASS's `epil`."""
    path = find("counts", "MASS_epil.csv")
    if path is None:
        raise InputError("There is no counts/MASS_epil.csv: write R's MASS::epil to it, under the folder PARTITA_DATA.")
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    x = [(float(line["trt"] == "progabide"), float(line["lbase"]), float(line["lage"])) for line in lines]
    y, patient = ([int(line[name]) for line in lines] for name in ("y", "subject"))
    return Epilepsy(np.array(x), np.array(y, float), np.array(patient))
