"""What shape has q? Exponential families of approximate posteriors and factors."""

from partita.families.any_form import AnyForm
from partita.families.base import Family, inner
from partita.families.block_gaussian import BlockGaussian
from partita.families.dirichlet import Dirichlet
from partita.families.flow import Flow
from partita.families.full_gaussian import FullGaussian
from partita.families.gamma import Gamma
from partita.families.gaussian import Gaussian, MeanFieldGaussian
from partita.families.inverse_gamma import InverseGamma
from partita.families.log_normal import LogNormal
from partita.families.mixture import Mixture
from partita.families.nearest_mean_field import NearestMeanField
from partita.families.normal_gamma import NormalGamma
from partita.families.product import Product
from partita.families.transformed import Transformed

__all__ = [
    "AnyForm",
    "BlockGaussian",
    "Dirichlet",
    "Family",
    "Flow",
    "FullGaussian",
    "Gamma",
    "Gaussian",
    "InverseGamma",
    "LogNormal",
    "MeanFieldGaussian",
    "Mixture",
    "NearestMeanField",
    "NormalGamma",
    "Product",
    "Transformed",
    "inner",
]
