"""A digest of the program that clients run, so that results of another one are told apart."""

import hashlib
import re

import jax

from partita.families.factor import Factor
from partita.local.client import answer, assign
from partita.server.method import Method
from partita_experiments.problem import PreparedProblem

_ADDRESS = re.compile(r"0x[0-9a-f]+")


def program(setting: PreparedProblem, method: Method) -> str:
    """A hash of the traced program of a visit: model, family, expectation and solver as they compute, and its shapes.

    Names of files, comments and versions do not count; another order of operations does. What a method asks for beside
    (its context, its schedule, its aggregation) is in the settings.
    """
    prior, shard, key = setting.prior, setting.clients.shards[0], jax.random.key(0)
    recipe = method.recipe(setting.model)
    one = Factor.one(prior)
    visit = assign(recipe, prior, prior, one, 1.0, {})
    traced = jax.make_jaxpr(lambda q: answer(recipe.model, recipe.solver, visit, q, shard, key, {}))(prior)
    return hashlib.sha256(_ADDRESS.sub("", str(traced)).encode()).hexdigest()[:16]
