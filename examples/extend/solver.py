"""A custom solver: each step goes half way to the fixed-point target, with backtracking on the free energy."""

import equinox as eqx

from partita import Solver
from partita.local.solvers.base import Progress, after, line_search


class HalfWay(Solver):
    """Fields are traced unless they are static, so that another value does not recompile."""

    max_steps: int = 200
    tolerance: float = 1e-12
    """In nats of KL."""
    halvings: int = eqx.field(static=True, default=20)

    def step(self, problem, progress, index, key):
        q, target = progress.q, problem.target(progress.q, key)

        def candidate(trial):
            share = 0.5 ** (trial + 1)
            return q ** (1 - share) * target**share

        found = line_search(problem, q, progress.free_energy, candidate, self.halvings, key)
        moved = found.q.distance(q)
        return Progress(found.q, found.free_energy, after(found, moved, moved, self.tolerance))
