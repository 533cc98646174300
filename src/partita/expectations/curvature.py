"""What rows say of the coefficients of a linear predictor, and of pairs of them: the precision of a full covariance."""

from jaxtyping import Array, Float

from partita.data.shard import Shard
from partita.expectations.blocks import Block, over_blocks
from partita.expectations.capabilities import CurvedInTable
from partita.families import Family
from partita.numerics.compiled import Compiled

__all__ = ["shard_curvature"]


@Compiled
def shard_curvature(model: CurvedInTable, q: Family, shard: Shard) -> Float[Array, "d d"]:
    """−E_q[∂² log p(y | β) / ∂β ∂βᵀ] = Σ_n w_n c_n x_n x_nᵀ of a client's rows."""

    def of(block: Block) -> Float[Array, "d d"]:
        rows = block.weights * model.curvatures(q, block.data)
        return (block.data.x * rows[:, None]).T @ block.data.x

    return over_blocks(of, shard)
