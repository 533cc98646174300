"""Clients that differ, made up and real: the parts of the study of inhomogeneity (`sec:appen:inhomogeneity`)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from partita.data.datasets import adult_table
from partita_experiments.datasets import epilepsy
from partita_experiments.datasets.heart import HOSPITALS, hospital

Generator = np.random.Generator


class Client(NamedTuple):
    """A client's rows, those that it learns from first: as many of them as `train` says."""

    name: str
    x: Float[np.ndarray, "n d"]
    y: Float[np.ndarray, " n"]
    train: int


_MADE = {"clients": 6, "train": 40}
PARTS: Mapping[str, Mapping[str, Any]] = {
    "covariate shift, model large enough": {"data": "waves", "model": "logistic", **_MADE, "columns": 3},
    "covariate shift, model too small": {"data": "waves", "model": "logistic", **_MADE, "columns": 1},
    "adult's occupations": {"data": "adult", "model": "logistic", "train": 40},
    "conditional shift": {"data": "levels", "model": "logistic", **_MADE, "sd": 1.5},
    "heart's hospitals": {"data": "heart", "model": "logistic", "train": 40},
    "epilepsy's patients": {"data": "epilepsy", "model": "poisson", "train": 3},
    "p(x), one Gaussian": {"data": "waves' x", "model": "gaussian", **_MADE},
    "p(x), mixture of six": {"data": "waves' x", "model": "mixture", **_MADE, "components": 6},
    "p(x) of heart's hospitals": {"data": "heart's x", "model": "gaussian", "train": 40},
}
"""The parts with their settings: first where p(y | x) is modelled, then where p(x) is."""
HELD_OUT = 400
"""How many rows are held out by a client that has more."""


def clients(part: str, seed: int) -> list[Client]:
    """The clients of a part; the seed makes the rows, or divides those that there are into learned and held out."""
    settings, generator = PARTS[part], np.random.default_rng(seed)
    return {
        "waves": waves,
        "waves' x": waves_inputs,
        "levels": levels,
        "adult": occupations,
        "heart": hospitals,
        "heart's x": heart_rates,
        "epilepsy": patients,
    }[settings["data"]](settings, generator)


def waves(settings: Mapping[str, Any], generator: Generator) -> list[Client]:
    """Inputs around places of their own, and one p(y | x), which waves: columns are x, and its sine and cosine."""

    def made(place: int) -> Client:
        x = 2.0 * (place - (settings["clients"] - 1) / 2) + 0.7 * generator.normal(size=settings["train"] + HELD_OUT)
        y = generator.random(len(x)) < 1 / (1 + np.exp(-3 * np.sin(x)))
        columns = np.stack([x, np.sin(x), np.cos(x)], axis=1)[:, : settings["columns"]]
        return Client(f"{place}", columns, y.astype(float), settings["train"])

    return [made(place) for place in range(settings["clients"])]


def waves_inputs(settings: Mapping[str, Any], generator: Generator) -> list[Client]:
    """The inputs of `waves`, which are to be told."""
    return [
        client._replace(x=np.zeros((len(client.y), 0)), y=client.x[:, 0])
        for client in waves({**settings, "columns": 1}, generator)
    ]


def levels(settings: Mapping[str, Any], generator: Generator) -> list[Client]:
    """Inputs alike, and an intercept of p(y | x) of each client's own."""

    def made(place: int) -> Client:
        x = generator.normal(size=(settings["train"] + HELD_OUT, 1))
        predictor = settings["sd"] * generator.normal() + x[:, 0]
        y = generator.random(len(x)) < 1 / (1 + np.exp(-predictor))
        return Client(f"{place}", x, y.astype(float), settings["train"])

    return [made(place) for place in range(settings["clients"])]


def occupations(settings: Mapping[str, Any], generator: Generator) -> list[Client]:
    """Adult by occupation: does a person earn more than 50,000 dollars, by age, schooling, hours, sex and marriage?"""
    table = adult_table()
    married = np.char.startswith(table["marital_status"].astype(str), "Married")
    x = np.stack(
        [table["age"], table["education_num"], table["hours_per_week"], table["sex"] == "Male", married], axis=1
    )
    y = (table["income"] == ">50K").astype(float)
    enough = settings["train"] + HELD_OUT
    names, counts = np.unique(table["occupation"], return_counts=True)
    found = []
    for name in names[(counts >= enough) & (names != "?")]:
        rows = generator.permutation(np.flatnonzero(table["occupation"] == name))[:enough]
        found.append(Client(str(name), x[rows].astype(float), y[rows], settings["train"]))
    return found


def hospitals(settings: Mapping[str, Any], generator: Generator) -> list[Client]:
    """Heart's four hospitals: is a patient ill, by ten columns but the resting ECG?"""
    return [_divided(name, *_heart(name), settings, generator) for name in HOSPITALS]


def heart_rates(settings: Mapping[str, Any], generator: Generator) -> list[Client]:
    """The highest heart rate of patients in heart's four hospitals, which is to be told."""
    rates = {name: hospital(name).columns["thalach"] / 20 for name in HOSPITALS}
    return [_divided(name, np.zeros((len(y), 0)), y, settings, generator) for name, y in rates.items()]


def patients(settings: Mapping[str, Any], generator: Generator) -> list[Client]:
    """Epilepsy's patients with four counts of seizures each, of which one is held out."""
    table = epilepsy()

    def divided(name: int) -> Client:
        rows = generator.permutation(np.flatnonzero(table.patient == name))
        return Client(f"{name}", table.x[rows], table.y[rows], settings["train"])

    return [divided(name) for name in np.unique(table.patient)]


def _heart(name: str) -> tuple[np.ndarray, np.ndarray]:
    frame = hospital(name)
    numbers = [frame.columns[column] for column in frame.columns if column not in frame.levels]
    pain = [(frame.columns["cp"] == level).astype(float) for level in ("1", "2", "3")]
    return np.stack([*numbers, *pain], axis=1), frame.y


def _divided(name: str, x: np.ndarray, y: np.ndarray, settings: Mapping[str, Any], generator: Generator) -> Client:
    """Rows in random order, of which no more than two thirds are learned from."""
    rows = generator.permutation(len(y))
    return Client(name, x[rows], y[rows], min(settings["train"], 2 * len(y) // 3))
