"""Writes synthetic rows of four clinics whose patients differ in age: east.csv, north.csv and so on.

Files that are there already are left alone.
"""

import csv
import sys
from pathlib import Path

import numpy as np

AGES = {"east": 55.0, "north": 60.0, "south": 62.0, "west": 65.0}
for path in (Path(f"{name}.csv") for name in AGES):
    if path.exists():
        print(f"{path} is there already: move it away, or write the example in another folder.", file=sys.stderr)
        sys.exit(2)
for seed, (name, age) in enumerate(AGES.items()):
    generator = np.random.default_rng(seed)
    ages = generator.normal(age, 9.0, 200)
    pressures = generator.normal(130.0, 15.0, 200)
    pains = generator.choice(["none", "some", "much"], 200)
    ill = generator.logistic(size=200) < (ages - 60.0) / 5.0 + (pains == "much")
    with open(f"{name}.csv", "x", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "pressure", "pain", "ill"])
        writer.writerows(zip(ages.round(1), pressures.round(1), pains, ill.astype(int), strict=True))
