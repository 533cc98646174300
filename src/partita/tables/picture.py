"""Figures that notebooks show by themselves, whether or not pyplot was imported."""

import io

from matplotlib.figure import Figure

__all__ = ["Picture"]

_DPI = 70


class Picture(Figure):
    """A figure of matplotlib with the method by which Jupyter asks an object for its picture."""

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png", dpi=_DPI)
        return out.getvalue()
