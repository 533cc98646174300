"""How long an experiment takes at most, from steps that are timed."""

import dataclasses

import pytest

import partita_experiments as experiments
from partita_experiments import estimate
from partita_experiments.config import Run
from partita_experiments.estimate import Forecast, Pace, duration, forecasts, sentence, total_seconds
from partita_experiments.problem import prepare
from partita_experiments.runner import Plan, execute

RUNS = (
    Run("pooled", 3),
    Run("alone", 3),
    Run("sequential", 10, evaluate_every=4),
    Run("synchronous", 10, name="all at once"),
    Run("asynchronous", 10),
    Run("global_vi", 12, evaluate_every=2),
    Run("bcm_same", 100),
)
"""On four clients whose solver takes 20 steps at most."""


@pytest.fixture
def plan(tmp_path):
    experiment = dataclasses.replace(experiments.load("heart").smoke_version(), runs=RUNS, seeds=2)
    return Plan(experiment, tmp_path)


def found(plan):
    problem = plan.experiment.problems[0]
    return {forecast.run: forecast for forecast in forecasts(plan, problem, prepare(plan.experiment, problem))}


def test_forecasts_are_upper_bounds(plan, monkeypatch):
    """With a second for a visit, one for ten steps and 100 for an evaluation, seconds tell how many there are of each.

    A synchronous round that has begun is finished.
    """
    monkeypatch.setattr(estimate, "_pace", lambda method, setting, parts: Pace(1.0, 0.1))
    monkeypatch.setattr(estimate, "_evaluation", lambda setting: 100.0)
    expected = {
        # visits, steps a visit, evaluations with the last one
        "pooled": (3, 20, 3),
        "alone": (4 * 3, 20, 4 * 3),
        "sequential": (10, 20, 2 + 1),
        "all at once": (12, 20, 3),
        "asynchronous": (10, 20, 10),
        "global_vi": (12, 1, 1 + 1),
        "bcm_same": (4, 20, 1),
    }
    left = found(plan)
    assert list(left) == list(expected)
    for run, (visits, steps, evaluations) in expected.items():
        assert left[run].cells == 2
        assert left[run].communications == 2 * visits
        assert left[run].steps == 2 * visits * steps
        assert left[run].seconds == pytest.approx(2 * (visits * (1 + 0.1 * steps) + 100 * evaluations))


def test_steps_are_timed_on_clients_and_on_pooled_rows_once_for_each_solver(plan, monkeypatch):
    timed = []
    measure = estimate._pace

    def pace(method, setting, parts):
        timed.append((type(method.solver).__name__, len(parts)))
        return measure(method, setting, parts)

    monkeypatch.setattr(estimate, "_pace", pace)
    left = found(plan)
    assert timed == [("Newton", 1), ("Newton", 4), ("NaturalGradient", 4)]
    # a step on a hundred rows takes microseconds, and however busy the machine is, not a second
    assert all(0 < forecast.step < 1 for forecast in left.values())
    assert all(0 < forecast.evaluation < 1 for forecast in left.values())


def test_finished_cells_are_not_counted(plan):
    few = plan._replace(experiment=dataclasses.replace(plan.experiment, runs=RUNS[2:3], seeds=1))
    execute(few, 1, lambda *_: None)
    assert found(few) == {}
    more = few._replace(experiment=dataclasses.replace(few.experiment, seeds=3))
    assert found(more)["sequential"].cells == 2
    assert total_seconds(few, [], 2) == 0


@pytest.mark.parametrize(("workers", "factor"), [(1, 1), (2, 4 / 3), (3, 1), (8, 1)])
def test_idle_workers_are_included_in_the_total_time(plan, workers, factor):
    """Three seeds are three batches: with two workers one of them has nothing to do at the end."""
    three = plan._replace(experiment=dataclasses.replace(plan.experiment, seeds=3))
    forecast = Forecast("p", "r", 1, 1, 1, 60.0, 0.1, 0.1)
    assert total_seconds(three, [forecast], workers) == pytest.approx(60 * factor)


def test_the_forecast_is_summarised_in_one_sentence():
    some = [
        Forecast("p", "a", 5, 1000, 4_000_000, 9000.0, 0.012, 0.5),
        Forecast("p", "b", 1, 10, 10, 1.0, 0.35, 0.5),
    ]
    assert sentence(some, 4800.0, 2) == (
        "6 cells to run with 1,010 communications and at most 4,000,010 gradient steps, at most about 1 h 20 min on 2 "
        "cores besides compiling (a step takes 12 ms to 350 ms, an evaluation 500 ms)."
    )
    assert "(a step takes 12 ms, an" in sentence(some[:1], 4800.0, 2)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0004, "0.4 ms"),
        (0.0123, "12 ms"),
        (0.35, "350 ms"),
        (0.9996, "1 s"),
        (2.34, "2.3 s"),
        (59.4, "59 s"),
        (59.7, "1 min"),
        (3570, "1 h 0 min"),
        (4800, "1 h 20 min"),
        (3600 * 47, "47 h 0 min"),
        (3600 * 76, "3 d 4 h"),
    ],
)
def test_durations_are_formatted_to_two_digits(seconds, text):
    assert duration(seconds) == text
