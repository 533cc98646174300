"""Data sets to try things on, as tables of numbers (`adult`) or before preprocessing (`adult_frames`).

Adult is bundled; breast cancer and digits come with scikit-learn.
"""

from partita.datasets.bundled import Dataset, adult, adult_frames, breast_cancer, digits
from partita.datasets.frame import Frame, Frames

__all__ = [
    "Dataset",
    "Frame",
    "Frames",
    "adult",
    "adult_frames",
    "breast_cancer",
    "digits",
]
