"""How fast an error falls."""

import numpy as np


def order(sizes, errors):
    """The power of the size to which each error falls, between one size and the next."""
    return np.diff(np.log(errors)) / np.diff(np.log(sizes))
