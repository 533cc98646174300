"""What shape has q? Exponential families of approximate posteriors and factors."""

from partita.families.base import Family, inner
from partita.families.gaussian import FullGaussian, Gaussian, MeanFieldGaussian
from partita.families.product import Product

__all__ = ["Family", "FullGaussian", "Gaussian", "MeanFieldGaussian", "Product", "inner"]
