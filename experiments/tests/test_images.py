"""What the experiments on images say of results that are made up."""

import itertools

import numpy as np
import pytest

from partita_experiments import images
from partita_experiments.report import ReportTable
from partita_experiments.results import Results
from support.made_up_cells import CLIENTS, cell, results_of_all_methods, verdicts


def seeds(method, nll, noise=0.0, **about):
    """Three seeds of a run on images, whose NLL differ by `noise`."""
    return [cell(method, [value + noise * (seed - 1) for value in nll], seed, "images", **about) for seed in range(3)]


def homogeneous(*cells):
    reference = seeds("global_vi", [0.5, 0.3], step=500, error=[0.1, 0.02])
    return verdicts(images.homogeneous(Results([*reference, *itertools.chain(*cells)]), CLIENTS))


@pytest.mark.parametrize(("error", "holds"), [(0.0225, True), (0.0175, True), (0.0235, False), (0.0165, False)])
def test_the_same_error_is_within_three_tenths_of_a_point(error, holds):
    found = homogeneous(seeds("sequential", [0.3], error=error))
    text = "images: sequential PVI ends within 0.3 percentage points of global VI's test error."
    assert found[text][0] is holds


@pytest.mark.parametrize(
    ("step", "error", "holds"), [(50, [0.1, 0.02], True), (51, [0.1, 0.02], False), (1, [0.02, 0.1], False)]
)
def test_a_tenth_of_the_communications_is_counted_until_the_error_stays_near(step, error, holds):
    """Global VI's error is near its last from its second evaluation on, at 1,000 communications."""
    found = homogeneous(seeds("synchronous", [0.3, 0.3], step=step, error=error))
    text = "images: synchronous PVI gets there for good with at most a tenth of global VI's communications."
    assert found[text][0] is holds
    assert found[text][1].endswith("against 1000.")


@pytest.mark.parametrize(("error", "holds"), [(0.041, True), (0.039, False)])
def test_committees_are_worse_by_two_points(error, holds):
    found = homogeneous(seeds("bcm_same", [0.3], error=error))
    text = "ends with more test error than global VI, by more than 2 percentage points and by more than 2 sd."
    assert found[f"images: BCM (same) {text}"][0] is holds


@pytest.mark.parametrize(("end", "noise", "holds"), [(0.31, 0.001, True), (0.31, 0.006, False), (0.29, 0.0, False)])
def test_one_pass_is_worse_than_many_by_two_sd(end, noise, holds):
    found = homogeneous(seeds("sequential", [0.3]), seeds("vcl", [end], noise))
    assert found["images: VCL ends at a higher test NLL than sequential PVI, by more than 2 sd."][0] is holds


@pytest.mark.parametrize(
    ("nll", "pruned", "holds"),
    [
        ([0.5, 0.3, 0.31, 0.32, 0.33], [0, 1, 2, 3, 4], True),
        ([0.5, 0.3, 0.31, 0.32, 0.33], [9, 4, 3, 2, 1], False),
        ([0.5, 0.45, 0.4, 0.35, 0.3], [0, 1, 2, 3, 4], None),  # nothing after the best
        ([0.5, 0.3, 0.31, 0.32, 0.33], [0, 1, 1, 1, 1], None),
    ],
)
def test_pruning_is_judged_after_the_lowest_nll(nll, pruned, holds):
    found = homogeneous(seeds("sequential", nll, pruned=pruned))
    text = "images: after sequential PVI's lowest test NLL, more pruned parameters go with a higher one."
    assert found[text][0] is holds


@pytest.mark.parametrize(("early", "holds"), [(0.29, True), (0.31, False)])
def test_a_run_is_compared_with_its_own_early_stopping(early, holds):
    name = "streaming_vb, early stopping"
    cells = [*seeds("streaming_vb", [0.3]), *seeds("streaming_vb", [early], run=name), *seeds("vcl", [0.2])]
    found = verdicts(images.early_stopping(Results(cells), CLIENTS))
    text = "images: streaming VB ends at a higher test NLL than streaming VB, early stopping, by more than 2 sd."
    assert {text: found[text][0]} == {text: holds}
    assert len(found) == 1


def damped(method, rho, errors, **about):
    nll = [0.3] * len(errors)
    return seeds(method, nll, run=f"{method}, ρ = {rho}", settings={"damping": rho}, error=errors, **about)


FAST, SLOW, LATE = [0.02, 0.02, 0.02], [0.1, 0.02, 0.02], [0.1, 0.1, 0.02]


@pytest.mark.parametrize(
    ("errors", "holds"),
    [((LATE, SLOW, FAST), True), ((LATE, LATE, FAST), True), ((FAST, SLOW, LATE), False), ((FAST, FAST, FAST), False)],
)
def test_less_damping_is_faster_where_the_error_is_low_earlier(errors, holds):
    order = {1.0: 2, 0.1: 0, 0.5: 1}
    cells = [item for rho in order for item in damped("sequential", rho, errors[order[rho]])]
    found = verdicts(images.damping(Results(cells), CLIENTS))
    holding, seen = found["images: less damping (a larger ρ) makes sequential PVI faster."]
    assert holding is holds
    assert seen.index("ρ = 0.1") < seen.index("ρ = 0.5") < seen.index("ρ = 1")


def test_synchronous_runs_with_little_damping_are_judged_by_divergence():
    cells = [
        *damped("synchronous", 0.1, LATE),
        *damped("synchronous", 0.2, SLOW),
        *damped("synchronous", 0.25, FAST),
        *damped("synchronous", 0.5, FAST, statuses=("improper",)),
    ]
    parts = images.damping(Results(cells), CLIENTS)
    found = verdicts(parts)
    assert found["images: less damping (a larger ρ) makes synchronous PVI faster where ρ < 0.25."][0] is True
    diverges = "images: synchronous PVI with ρ = {} diverges, as it does in the paper from 0.25 on."
    assert found[diverges.format(0.25)] == (False, "ended budget spent, with a test error of 0.0200 ± 0.0000.")
    assert found[diverges.format(0.5)][0] is True
    assert len(found) == 3
    table = [part for part in parts if isinstance(part, ReportTable)][1]
    assert [row[:2] for row in table.rows] == [["synchronous PVI", rho] for rho in ("0.1", "0.2", "0.25", "0.5")]


def inhomogeneous(**nll):
    cells = [
        item for method, values in nll.items() for item in seeds(method, values, step=600, error=[0.1, 0.04, 0.03])
    ]
    return images.inhomogeneous(Results(cells), CLIENTS)


def test_efficiency_at_first_is_judged_after_a_thousand_communications():
    """Evaluations are at 600, 1,200 and 1,800."""
    found = verdicts(inhomogeneous(sequential=[0.4, 0.3, 0.3], global_vi=[0.5, 0.2, 0.1]))
    sooner = "images: after 1,000 communications {} is at a lower test NLL than {}, by more than 2 sd."
    assert found[sooner.format("sequential PVI", "global VI")] == (True, "0.1000 ± 0.0000 below it.")
    found = verdicts(inhomogeneous(sequential=[0.4, 0.3, 0.3], stochastic_global_vi=[0.45, 0.1, 0.1]))
    assert found[sooner.format("stochastic global VI", "sequential PVI")][0] is False


def test_communications_to_97_per_cent_stand_beside_published_ones():
    grids = [part for part in inhomogeneous(sequential=[0.4, 0.3, 0.2]) if isinstance(part, ReportTable)]
    reached = next(grid for grid in grids if grid.header == ["method", "communications"])
    assert reached.rows == [["sequential PVI", "1800"], *([name, f"{n}"] for name, n in images.FEDAVG.items())]
    assert list(images.FEDAVG.values()) == [6640, 38000]
    way = next(grid for grid in grids if "NLL at 1,000" in grid.header)
    assert way.header == ["method", "error at 1,000", "NLL at 1,000", "error at 3,000", "NLL at 3,000"]
    sd = "± 0.0000"
    assert way.rows == [["sequential PVI", f"0.1000 {sd}", f"0.4000 {sd}", f"0.0300 {sd}", f"0.2000 {sd}"]]


def test_an_ablation_lists_the_best_first_and_makes_no_statements():
    cells = [
        *seeds("sequential", [0.4, 0.3], run="worse"),
        *seeds("sequential", [0.5, 0.2], step=500, run="best"),
        *seeds("sequential", [0.4, np.inf], run="lost"),
    ]
    parts = images.ablation(Results(cells), CLIENTS)
    grid = [part for part in parts if isinstance(part, ReportTable)][1]
    assert [row[0] for row in grid.rows] == ["best", "worse", "lost"]
    assert grid.rows[0][1:3] == ["0.2000 ± 0.0000", "0.5000 ± 0.0000"]
    assert grid.rows[0][-1] == "0.2000 ± 0.0000"
    assert not verdicts(parts)


def test_many_clients_are_summarised_by_ranges():
    grid = next(
        part for part in images.ablation(results_of_all_methods("images"), CLIENTS) if isinstance(part, ReportTable)
    )
    assert grid.rows == [["credit B", "2", "36 to 67", "1 to 2"]]
