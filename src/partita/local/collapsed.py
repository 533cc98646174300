"""Locally collapsed bounds: a client's free energy at its best q, as a function of hyperparameters."""

import dataclasses

import jax
from jaxtyping import Array, Float, Key

from partita.hyper.values import Hyper, model_given
from partita.local.objective import Problem
from partita.local.solvers.base import Solver
from partita.numerics.compiled import Compiled

__all__ = ["collapsed_bound"]


@Compiled
def collapsed_bound(
    solver: Solver, problem: Problem, hyper: Hyper, key: Key[Array, ""]
) -> tuple[Float[Array, ""], Hyper]:
    """max over q of a client's F_k(q, ε), and its gradient in ε (`sec:optim:analytic`).

    By the envelope theorem the gradient is that at the best q held fixed. With a conjugate model and `Conjugate` the
    bound is exact: log ∫ context(θ) p(y_k | θ, ε) dθ. It needs this client's rows alone, so that a client can climb it
    where bounds of all rows are out of reach (Bui et al. 2017).

    Args:
        solver: how q is found.
        problem: the client's; its model's hyperparameters are replaced.
        hyper: values of hyperparameters of the likelihood, by name.
        key: for sampled expectations.

    """
    at = dataclasses.replace(problem, model=model_given(problem.model, hyper))
    best = jax.lax.stop_gradient(solver.solve(at, key).q)

    def bound(hyper: Hyper) -> Float[Array, ""]:
        return dataclasses.replace(problem, model=model_given(problem.model, hyper)).free_energy(best, key)

    return jax.value_and_grad(bound)(hyper)
