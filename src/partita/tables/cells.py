"""The cells of a table's rows of which sums of a design's columns tell."""

import numpy as np
from jaxtyping import Float, Int

from partita.data.columns import Counts
from partita.data.disclosure import FEW
from partita.tables.design import Design, categories
from partita.tables.formula import Factor
from partita.tables.reading import Columns

__all__ = ["is_counted", "smallest_cells"]


def smallest_cells(design: Design, columns: Columns) -> dict[str, Float[np.ndarray, " n"]]:
    """Where rows are in the smallest cell of each interaction, by the interaction.

    Sums tell of all its cells: where a level has 40 rows and 38 of them are told of, they tell of 2 as well.
    """
    factors, found = {factor.text: factor for factor in design.formula.factors}, {}
    for term in design.formula.terms:
        parts = [part for each in term.factors if each.expr in factors for part in _parts(factors[each.expr], columns)]
        if len(parts) > 1:
            _, cells, counts = np.unique(np.column_stack(parts), axis=0, return_inverse=True, return_counts=True)
            found[str(term)] = (cells.ravel() == np.argmin(counts)).astype(float)
    return found


def _parts(factor: Factor, columns: Columns) -> list[Int[np.ndarray, " n"]]:
    """What divides rows into few groups: a category's levels, or columns of so few values that sums tell them apart."""
    if is_counted(factor, columns):
        return [np.unique(categories(factor, columns), return_inverse=True)[1]]
    divided = [np.unique(columns[name], return_inverse=True, equal_nan=True) for name in factor.columns]
    return [groups for values, groups in divided if len(values) <= FEW]


def is_counted(factor: Factor, columns: Columns) -> bool:
    """Whether a factor is a category."""
    name = factor.columns[0] if factor.columns else factor.text
    is_text = columns[name].dtype.kind == Counts.dtype.kind and len(factor.columns) == 1
    return factor.function == "C" or (is_text and not factor.function and factor.text == name)
