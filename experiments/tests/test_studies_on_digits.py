"""What is said of the length of visits, of early stopping, of damping and of whom the posterior favours; made up."""

import itertools

import numpy as np
import pytest

from partita_experiments import images, local_steps, order
from partita_experiments.config import load
from partita_experiments.figure import drawn
from partita_experiments.report import ReportTable, Text
from partita_experiments.results import Results
from support.made_up_cells import cell, verdicts

TWO = {"images": [{"client": "a", "rows": 10, "labels": 2}, {"client": "b", "rows": 10, "labels": 1}]}
TEN = {"images": [{"client": "a", "rows": 10, "labels": 10}]}


def seeds(method, nll, noise=0.0, steps=1, **about):
    """Three seeds whose NLL differ by `noise`, with visits of so many steps."""
    found = []
    for seed in range(3):
        one = cell(method, [value + noise * (seed - 1) for value in nll], seed, "images", **about)
        for row in one["rows"]:
            row["gradient_steps"] = steps * row["communications"]
        found.append(one)
    return found


def visits(steps, nll, noise=0.0, **about):
    run = f"sequential, {steps}"
    return seeds("sequential", nll, noise, steps, run=run, settings={"damping": 1.0}, **about)


ONE, TENFOLD = visits(1, [0.9, 0.5, 0.4]), visits(10, [0.9, 0.4, 0.3])


@pytest.mark.parametrize(
    ("longest", "saves"), [([0.5, 0.4, 0.4], True), ([0.9, 0.9, 0.9], False), ([0.9, 0.5, 0.4], False)]
)
def test_longer_visits_save_communications_where_more_than_half_of_them_do(longest, saves):
    results = Results([*visits(200, longest), *ONE, *TENFOLD])
    text = "images: sequential PVI, ρ = 1: of the longer visits more than half reach a test NLL of 0.4 with fewer "
    holds, seen = verdicts(local_steps.page(results, TEN))[text + "communications than visits of one step."]
    last = {True: "20", False: "∞" if longest[-1] > 0.4 else "30"}[saves]
    allowed = "communications of those allowed by steps a visit"
    assert (holds, seen) == (saves, f"{allowed}: 30 of 30 with 1, 20 of 30 with 10, {last} of 30 with 200.")


@pytest.mark.parametrize(("left_out", "shorter"), [(1, 3), (0, 2)], ids=["seeds", "budget"])
def test_longer_visits_are_not_judged_with_few_seeds_or_smaller_budgets(left_out, shorter):
    """A run that never had as many communications as visits of one step needed may have needed fewer or more."""
    results = Results([*ONE[left_out:], *TENFOLD, *visits(200, [0.9] * shorter), *visits(300, [0.9] * shorter)])
    [text] = [text for text in verdicts(local_steps.page(results, TEN)) if "of the longer visits" in text]
    assert verdicts(local_steps.page(results, TEN))[text][0] is None


@pytest.mark.parametrize(("noise", "holds"), [(0.01, True), (0.2, False)])
def test_few_steps_are_judged_where_clients_have_two_labels(noise, holds):
    results = Results([*TENFOLD, *visits(200, [0.9, 0.8, 0.5], noise)])
    text = (
        "images: sequential PVI, ρ = 1: visits of 10 steps end at a lower test NLL than visits to convergence, by more "
    )
    found = verdicts(local_steps.page(results, TWO))
    assert found[text + "than 2 sd."][0] is holds
    assert text + "than 2 sd." not in verdicts(local_steps.page(results, TEN))


def test_schedules_with_a_damping_that_follows_the_free_energy_are_told_apart():
    results = Results(
        [
            *seeds("synchronous", [0.3], settings={"damping": 0.1}, run="a"),
            *seeds("synchronous", [0.3], run="b"),
            *TENFOLD,
        ]
    )
    names = [some.style.name for some in local_steps.series(results, "images")]
    assert names == ["synchronous PVI, ρ = 0.1", "synchronous PVI, adaptive ρ", "sequential PVI, ρ = 1"]


def test_a_figure_of_visits_carries_the_digest_of_its_numbers(tmp_path):
    results = Results([*ONE, *TENFOLD, *visits(200, [0.9, 0.9, 0.9])])
    [drawing] = local_steps.figures(load("digits-steps"), results)
    drawing.draw(tmp_path / drawing.picture.file)
    assert drawn(tmp_path / "steps.png") == drawing.digest
    [other] = local_steps.figures(load("digits-steps"), Results([*ONE, *TENFOLD]))
    assert other.digest != drawing.digest


def visited(method, latest, others, noise=0.0):
    """Three clients: after the second visit two have been visited, and do not count yet."""
    found = seeds(method, [0.3] * 4)
    for seed, one in enumerate(found):
        own = [latest + noise * (seed - 1), *others]
        for row, scores in zip(one["rows"], ([9.0], [9.0, 9.0], own, own), strict=True):
            row["by_recency"] = scores
    return found


@pytest.mark.parametrize(
    ("latest", "noise", "holds"), [(0.1, 0.01, True), (0.1, 0.2, False), (0.4, 0.0, False), (0.31, 0.0, False)]
)
def test_the_last_client_is_favoured_where_its_rows_have_a_lower_nll(latest, noise, holds):
    results = Results(visited("vcl", latest, [0.2, 0.4], noise))
    text = "images: VCL favours the client visited last: the NLL on its rows is lower than on the others', by more "
    assert verdicts(order.page(results, TEN))[text + "than 2 sd."][0] is holds
    np.testing.assert_allclose(order.by_recency(results, "images", "vcl").mean(axis=0), [latest, 0.2, 0.4])


def test_a_figure_of_recency_carries_the_digest_of_its_numbers(tmp_path):
    [drawing] = order.figures(load("digits-order"), Results(visited("vcl", 0.1, [0.2, 0.4])))
    drawing.draw(tmp_path / "x.png")
    assert drawn(tmp_path / "x.png") == drawing.digest


def early(**runs):
    """Runs by their names, with NLL on test and training rows at the end."""
    names = {"reference": "global_vi, early stopping", "begun": "sequential, early stopping from the posterior"}
    cells = []
    for name, (nll, train) in runs.items():
        run = names.get(name, name.replace("_early", ", early stopping"))
        method = "global_vi" if "global" in run else run.partition(",")[0]
        some = seeds(method, nll, 0.001, run=run)
        for one in some:
            for row in one["rows"]:
                row["train_nll"] = train
        cells.append(some)
    return verdicts(images.early_stopping(Results(list(itertools.chain(*cells))), TEN))


@pytest.mark.parametrize(("end", "holds"), [(0.304, True), (0.306, False), (0.294, False)])
def test_early_stopping_finds_the_best_of_global_vi_where_it_ends_near_its_lowest_nll(end, holds):
    found = early(global_vi=([0.5, 0.3, 0.35], 0.1), reference=([0.5, end], 0.1))
    text = "images: global VI, early stopping, ends within 0.005 of the lowest test NLL that global VI passes through."
    assert found[text][0] is holds
    assert "after 20 communications" in found[text][1]


@pytest.mark.parametrize(("train", "holds"), [(0.08, True), (0.097, False), (0.2, False)])
def test_a_run_over_fits_by_more_than_global_vi_that_stopped_early(train, holds):
    found = early(global_vi=([0.3], 0.1), reference=([0.3], 0.1), sequential_early=([0.3], train))
    text = "images: sequential PVI, early stopping over-fits: test NLL less training NLL is larger than of global VI, "
    assert found[text + "early stopping, by more than 2 sd, and by more than 0.005."][0] is holds


@pytest.mark.parametrize(("end", "holds"), [(0.304, True), (0.31, False)])
def test_early_stopping_of_visits_begun_at_the_posterior_is_compared_with_none(end, holds):
    found = early(sequential=([0.3], 0.1), begun=([end], 0.1))
    [text] = [text for text in found if "changes nothing" in text]
    assert found[text][0] is holds
    assert found[text][1].endswith("with 1 and 1 steps a visit.")


def damped(rho, nll, **about):
    return seeds("sequential", nll, run=f"sequential, ρ = {rho:g}", settings={"damping": rho}, **about)


@pytest.mark.parametrize(("mild", "whole", "holds"), [([0.5, 0.3], [0.5, 0.4], True), ([0.5, 0.4], [0.3, 0.3], False)])
def test_damping_helps_two_digits_where_its_nll_is_low_earlier(mild, whole, holds):
    results = Results([*damped(0.3, mild), *damped(1.0, [0.6, *whole])])
    text = "images: sequential PVI is faster with ρ = 0.3 than undamped."
    assert verdicts(images.damping(results, TWO))[text][0] is holds
    assert text not in verdicts(images.damping(results, TEN))


def test_the_largest_stable_damping_is_told():
    cells = [
        *seeds("synchronous", [0.3], run="synchronous, ρ = 0.1", settings={"damping": 0.1}),
        *seeds("synchronous", [0.3], run="synchronous, ρ = 0.3", settings={"damping": 0.3}, statuses=("diverged",)),
        *seeds("synchronous", [0.3, 0.9], run="synchronous, ρ = 0.2", settings={"damping": 0.2}),
    ]
    cells[-1]["rows"][-1]["free_energy"] = -2.0
    parts = images.damping(Results(cells), TEN)
    [said] = [part.text for part in parts if isinstance(part, Text)]
    assert said == (
        "The largest ρ with which no seed of synchronous PVI diverged, became improper or ended at a lower free energy "
        "than after its first round: 0.1."
    )
    table = [part for part in parts if isinstance(part, ReportTable)][1]
    assert [row[1] for row in table.rows] == ["0.1", "0.2", "0.3"]
