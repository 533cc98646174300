"""The study of forms of inhomogeneity: its clients, its densities, and what it says of made-up measurements."""

import json

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from partita import LinearRegression, LogisticRegression
from partita_experiments import inhomogeneity, personal, shifts
from partita_experiments.cli import app
from partita_experiments.inhomogeneity import STUDY
from support.made_up_cells import verdicts

MADE_UP = [part for part, settings in shifts.PARTS.items() if "clients" in settings]


@pytest.mark.parametrize("part", MADE_UP)
def test_a_seed_makes_the_same_clients_again_and_another_seed_others(part):
    first, again, other = (shifts.clients(part, seed) for seed in (0, 0, 1))
    assert len(first) == shifts.PARTS[part]["clients"]
    for client, same, unlike in zip(first, again, other, strict=True):
        assert len(client.x) == len(client.y) == client.train + shifts.HELD_OUT
        np.testing.assert_array_equal(client.y, same.y)
        assert client.train == shifts.PARTS[part]["train"]
        assert not np.array_equal(np.c_[client.x, client.y], np.c_[unlike.x, unlike.y])


def test_under_covariate_shift_alone_clients_share_what_they_say_of_an_input():
    """Means of x are two apart; the share of ones near an input is that of one curve at whichever client."""
    some = [client for seed in range(40) for client in shifts.clients("covariate shift, model large enough", seed)]
    for place in range(6):
        x = np.concatenate([client.x[:, 0] for client in some[place::6]])
        y = np.concatenate([client.y for client in some[place::6]])
        assert x.mean() == pytest.approx(2 * (place - 2.5), abs=0.05)
        for input_ in (x.mean() - 0.8, x.mean() + 0.8):
            near = np.abs(x - input_) < 0.1
            assert y[near].mean() == pytest.approx(1 / (1 + np.exp(-3 * np.sin(input_))), abs=0.06)


def test_under_conditional_shift_clients_share_the_inputs():
    some = shifts.clients("conditional shift", 0)
    means = [client.x.mean() for client in some]
    assert np.abs(means).max() < 4 / np.sqrt(440)
    assert np.ptp([client.y.mean() for client in some]) > 0.3


def test_columns_are_standardised_by_what_all_learn_from():
    learned = np.concatenate([table.x for table, _ in personal._standardised(shifts.clients("conditional shift", 0))])
    np.testing.assert_allclose(learned[:, :2].mean(axis=0), [1, 0], atol=1e-12)
    np.testing.assert_allclose(learned[:, 1].std(), 1)
    assert learned.shape == (240, personal.COLUMNS)
    assert not learned[:, 2:].any()


def test_predictive_densities_are_the_closed_ones():
    """Of a normal response whose predictor is a mixture of normals; the two probabilities of a label add up to 1."""
    mean, variance, masses = (
        np.array([[0.0, 1.0], [2.0, -1.0]]),
        np.array([[0.5, 1.0], [0.2, 2.0]]),
        np.array([0.3, 0.7]),
    )
    y = np.array([0.4, -0.3])
    exact = np.log(stats.norm.pdf(y[:, None], mean, np.sqrt(variance + 0.49)) @ masses)
    np.testing.assert_allclose(
        personal._log_density(LinearRegression(0.7), mean, variance, masses, y), exact, rtol=1e-5
    )
    both = [
        personal._log_density(LogisticRegression(), mean, variance, masses, np.full(2, label)) for label in (0.0, 1.0)
    ]
    np.testing.assert_allclose(np.exp(both).sum(axis=0), 1, rtol=1e-6)


def rows(part, seeds=3, **levels):
    """Made-up measurements of two clients; `levels` are the ways' held-out densities."""
    ways = dict(zip(("shared", "alone", "partly"), personal.WAYS, strict=True))
    return [
        STUDY.row(
            part, seed=seed, way=ways[way], client=client, rows=40, log_density=level + 0.01 * seed * (way == "alone")
        )
        for way, level in levels.items()
        for seed in range(seeds)
        for client in "ab"
    ]


@pytest.mark.parametrize(("alone", "holds"), [(-0.6, True), (-0.5, False), (-0.4, False)])
def test_one_shared_model_is_judged_by_held_out_densities(alone, holds):
    part = "covariate shift, model large enough"
    found = verdicts(inhomogeneity.tell(rows(part, shared=-0.5, alone=alone, partly=-0.5)))
    ((text, (judged, _)),) = found.items()
    assert text.endswith("(covariate shift, model large enough: one shared above each alone, by more than 2 sd).")
    assert judged is holds


def test_a_study_of_one_seed_says_how_many_it_takes():
    told = inhomogeneity.tell(rows("conditional shift", seeds=1, shared=-0.5, alone=-0.4, partly=-0.3))
    found = verdicts(told)
    assert len(found) == 3
    assert {judged for judged, _ in found.values()} == {None}
    assert all("It takes 3 seeds, and there is 1." in part.told for part in told if hasattr(part, "told"))


def test_all_claims_are_about_parts_and_ways_that_there_are():
    claimed = [about for shown in inhomogeneity.CLAIMS.values() for about in shown]
    assert {part for part, _, _ in claimed} == set(shifts.PARTS)
    assert {way for _, *ways in claimed for way in ways} == set(personal.WAYS)


@pytest.mark.slow
def test_a_quick_run_writes_what_it_reports_and_measures_nothing_twice(tmp_path, monkeypatch):
    arguments = ["inhomogeneity", "--quick", "--json", "--output", str(tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert len(report["statements"]) == 3
    assert all((tmp_path / file).stat().st_size > 100 for file in ("results.parquet", "report.md", "inhomogeneity.png"))
    monkeypatch.setattr(inhomogeneity, "measured", lambda part, seed: pytest.fail("it is there"))
    assert CliRunner().invoke(app, arguments).exit_code == 0
