"""Data sets to try things on: Adult is bundled; breast cancer and digits come with scikit-learn."""

from partita.datasets.bundled import Dataset, adult, breast_cancer, digits

__all__ = ["Dataset", "adult", "breast_cancer", "digits"]
