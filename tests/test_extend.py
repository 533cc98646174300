"""The examples of members of one's own keep their contracts, and CONTRIBUTING.md shows them as they are."""

import importlib.util
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import partita as pt
from support.problems import MODEL, PARTS, PRIOR, SOLVER

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "examples" / "extend").glob("*.py"))
AXES = ("aggregation", "engine", "family", "likelihood", "schedule", "solver")


def member(axis):
    """The module of an example."""
    spec = importlib.util.spec_from_file_location(f"extend_{axis}", ROOT / "examples" / "extend" / f"{axis}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_extension_point_has_an_example():
    assert [file.stem for file in FILES] == list(AXES)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_contributing_page_quotes_each_short_example_verbatim(file):
    page = (ROOT / "CONTRIBUTING.md").read_text()
    shown = dict(re.findall(r"<!-- examples/extend/(\w+)\.py -->\n```python\n(.*?)```\n", page, re.DOTALL))
    assert shown[file.stem] == file.read_text()
    assert sum(bool(line.strip()) for line in file.read_text().split("\n")) < 40


def test_family():
    family = member("family").Exponential
    pt.checks.check_family(family(jnp.array([-1.0, -2.0])), family(jnp.array([-0.5, -3.0])))


def test_likelihood():
    model, x = member("likelihood").WaitingTimes(), np.array([[1.0, 0.2], [1.0, -1.0], [1.0, 0.7]])
    pt.checks.check_model(model, pt.FullGaussian.standard_normal(2) ** 4, pt.Table(x, np.array([0.3, 2.0, 1.1])))
    with pytest.raises(pt.InputError, match="row 1 has the response 0"):
        model.check(pt.Table(x, np.array([0.3, 0.0, 1.1])))


def test_solver():
    pt.checks.check_solver(member("solver").HalfWay(), MODEL, PRIOR, PARTS.shards[0].data)


def test_schedule():
    pt.checks.check_schedule(member("schedule").Pairs())


def test_aggregation():
    pt.checks.check_aggregation(member("aggregation").Decaying(), SOLVER, MODEL, PRIOR, PARTS)


def test_engine():
    pt.checks.check_engine(member("engine").Lazy(PARTS), pt.methods.sequential(SOLVER), MODEL, PRIOR)


def test_the_examples_work_together_in_one_run():
    """Half steps, in pairs, damped less and less, one answer when asked: the posterior of a plain run."""
    method = pt.Method(member("solver").HalfWay(), member("schedule").Pairs(), member("aggregation").Decaying(0.05))
    result = pt.run(method, MODEL, PRIOR, engine=member("engine").Lazy(PARTS), rounds=100, tolerance=1e-12)
    plain = pt.run(pt.methods.sequential(SOLVER), MODEL, PRIOR, PARTS, tolerance=1e-12)
    # KL of 1e-12 nats is about 1e-6 standard deviations, a few clients and decaying steps away from the fixed point
    np.testing.assert_allclose(result.posterior.mean, plain.posterior.mean, atol=1e-4)
