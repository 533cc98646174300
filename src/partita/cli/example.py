"""`partita example`: the bundled table as a CSV file, to try `partita fit` with."""

from pathlib import Path

from partita.data.datasets import adult_table
from partita.errors import DataError
from partita.io import atomic

__all__ = ["write_example"]


def write_example(path: Path) -> None:
    """Writes Adult, and says what to do with it."""
    if path.exists():
        raise DataError(f"{path} already exists: give another name.")
    if path.suffix.lower() != ".csv":
        raise DataError(f"{path} does not end in .csv, by which `partita fit` knows the format: give another name.")
    table = {name: values.tolist() for name, values in adult_table().items()}
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    atomic.write_csv(path, rows)
    print(f"{path} has {len(rows)} rows of the census of 1994 (Adult, UCI, CC BY 4.0). Fit it with")
    formula = "income ~ age + sex + education_num + hours_per_week"
    print(f"  partita fit '{formula}' {path} --family bernoulli --sites workclass")
