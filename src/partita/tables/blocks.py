"""Which columns of a design share a block of a block-diagonal covariance."""

from collections.abc import Sequence

__all__ = ["block_sizes"]

_USUAL = 200
"""How many columns a block has at most, unless one term has more."""
_MOST = 500
"""The largest block; a longer term, such as a category of 2,000 levels, is divided."""


def block_sizes(widths: Sequence[int]) -> tuple[int, ...]:
    """The number of columns of each block, in the order of the design.

    Columns of one term, such as levels of a category or a spline's, are correlated by construction, so that they stay
    in one block as long as it has at most 500 columns. Terms are added to a block in the order of the formula, the
    intercept first. Blocks are stored at the size of the largest, so that all are filled up to that.

    Args:
        widths: the number of columns of each term.

    """
    pieces = [piece for width in widths for piece in _divided(width)]
    most, sizes = max(_USUAL, *pieces), [0]
    for piece in pieces:
        if sizes[-1] + piece > most:
            sizes.append(0)
        sizes[-1] += piece
    return tuple(sizes)


def _divided(width: int) -> list[int]:
    """Nearly equal parts of a term, none above the largest block."""
    count = -(-width // _MOST)
    return [width // count + (part < width % count) for part in range(count)]
