"""The files of a federation of clinics: its own, and those of its clients' rows."""

import csv

import numpy as np

from partita.tables.spec import Settings

TOML = """
name = "clinics"
clients = ["east", "north", "west"]

[data]
response = "ill"
numbers = ["age", "pressure"]
categories = { pain = ["none", "some", "much"], site = [] }
positive = ["yes"]

[model]
kind = "logistic"

[run]
rounds = 8
"""
ILL = Settings("ill ~ age + pressure + pain", "bernoulli")
"""A formula of columns that every clinic has."""
COLUMNS = ("age", "pressure", "pain", "site", "ill", "surname")


def clinic(seed, rows=30):
    """The rows of a clinic as its file has them; one column is not part of the federation's data."""
    generator = np.random.default_rng(seed)
    age, pressure = generator.normal(60, 9, rows), generator.normal(130, 15, rows)
    pain = generator.choice(["none", "some", "much"], rows)
    ill = np.where(generator.logistic(size=rows) < (age - 60) / 5 + (pain == "much"), "yes", "no")
    site = generator.choice(["left", "right"], rows)
    return list(zip(np.round(age, 1), np.round(pressure, 1), pain, site, ill, ["Doe"] * rows, strict=True))


def write(path, rows, columns=COLUMNS):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
