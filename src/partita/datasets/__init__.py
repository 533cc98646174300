"""Data sets to try things on, as tables of numbers (`adult`) or before preprocessing (`adult_frames`).

Adult is bundled; breast cancer, diabetes and digits come with scikit-learn; others are the user's own or downloaded.
"""

from partita.datasets.bundled import Dataset, adult, bank, breast_cancer, credit, diabetes, digits
from partita.datasets.frame import Frame, Frames
from partita.datasets.heart import heart_frames
from partita.datasets.mimic import mimic_frames
from partita.datasets.mnist import mnist
from partita.datasets.physionet import physionet_frames
from partita.datasets.uci import adult_frames, bank_frames, credit_frames, frames

__all__ = [
    "Dataset",
    "Frame",
    "Frames",
    "adult",
    "adult_frames",
    "bank",
    "bank_frames",
    "breast_cancer",
    "credit",
    "credit_frames",
    "diabetes",
    "digits",
    "frames",
    "heart_frames",
    "mimic_frames",
    "mnist",
    "physionet_frames",
]
