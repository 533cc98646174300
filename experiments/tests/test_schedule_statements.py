"""Statements on schedules, from cells that were made up, and the figure of many clients."""

import numpy as np
import pytest

from partita_experiments import growth, schedules, source
from partita_experiments.config import load
from partita_experiments.figure import draw, drawn
from partita_experiments.report import ReportTable
from partita_experiments.results import Results
from support.made_up_cells import cell, verdicts


def run(name, method, gaps, problem="adult B", seeds=3, step=10, clients="", nll=0.3, **more):
    """Cells whose free energies lie so far below 0, global VI's."""
    cells = []
    for seed in range(seeds):
        found = cell(method, [nll] * len(gaps), seed, problem, step, run=name, **more)
        for k, (row, gap) in enumerate(zip(found["rows"], gaps, strict=True)):
            row["free_energy"] = -gap
            if clients:
                row["client"] = clients[k]
        cells.append(found)
    return cells


def some(**gaps):
    """Three schedules on adult B beside pooled rows; gaps by method."""
    given = {"sequential": [5, 0.5, 0.1], "synchronous": [5, 4, 0.5], "asynchronous": [9, 8, 0.7]} | gaps
    cells = run("pooled", "pooled", [0.0])
    for method, values in given.items():
        cells += run(f"{method}, x", method, values, step={"sequential": 2, "asynchronous": 30}.get(method, 10))
    return Results(cells)


CLIENTS = {"adult B": [{"client": f"{k}", "rows": 9, "labels": 2, "positive": 0.5} for k in range(2)]}
NAT = "until within 1 nat of global VI's free energy."


def test_the_gap_is_counted_from_the_highest_free_energy_of_any_run():
    results = Results([*run("a", "vcl", [3.0, 1.0]), *run("b", "sequential", [2.0, 0.25]), *run("c", "alone", [-9.0])])
    assert results.final("adult B", "a", "gap").tolist() == [0.75] * 3
    assert results.final("adult B", "b", "gap").tolist() == [0.0] * 3
    assert Results([cell("vcl", [0.3], free_energy="inf")]).final("credit B", "vcl", "gap").tolist() == [-np.inf]


def test_schedules_are_compared_by_when_they_have_arrived():
    found = verdicts(schedules.schedules(some(), CLIENTS))
    assert found[f"adult B: sequential PVI needs the fewest communications {NAT}"][0] is True
    assert found[f"adult B: asynchronous PVI needs the most communications {NAT}"][0] is True
    assert found[
        f"adult B: with clients unlike, synchronous PVI needs fewer communications than sequential PVI {NAT}"
    ] == (
        False,
        "sequential PVI, x 4; synchronous PVI, x 30.",
    )
    swapped = verdicts(schedules.schedules(some(synchronous=[0.5, 0.1, 0.1], sequential=[9] * 30), CLIENTS))
    assert swapped[f"adult B: sequential PVI needs the fewest communications {NAT}"][0] is False
    arrives = "adult B: asynchronous PVI, x comes within 1 nat of global VI's free energy."
    assert found[arrives][0] is True
    assert verdicts(schedules.schedules(some(asynchronous=[9, 0.5, 3]), CLIENTS))[arrives][0] is False


def test_nothing_is_said_of_runs_none_of_which_arrives():
    found = verdicts(schedules.schedules(some(sequential=[9], synchronous=[9], asynchronous=[9]), CLIENTS))
    assert found[f"adult B: sequential PVI needs the fewest communications {NAT}"][0] is None
    assert found[f"adult B: asynchronous PVI needs the most communications {NAT}"][0] is None


def test_answers_that_bring_nothing_are_redundant():
    """Of two clients a fair share is a half: an answer must bring a twentieth of what is left."""
    quick = run(
        "asynchronous, x",
        "asynchronous",
        [100, 99, 98, 50, 49.5, 0.4, 0.3],
        clients=["a", "a", "a", "b", "a", "b", "a"],
    )
    slow = run("sequential, x", "sequential", [100, 60, 30, 0.5], clients=["a", "b", "a", "b"])
    results = Results([*run("pooled", "pooled", [0.0]), *quick, *slow])
    [table] = [part for part in schedules.schedules(results, CLIENTS) if isinstance(part, ReportTable)][1:]
    # after the first: a (1 of 100) and a (1 of 99) and a (0.5 of 50) are redundant, b's two are not
    assert table.rows == [
        ["adult B", "asynchronous PVI, x", "5", "3", "100%", "0%"],
        ["adult B", "sequential PVI, x", "3", "2", "0%", "0%"],
    ]
    [verdict] = [
        found for text, found in verdicts(schedules.schedules(results, CLIENTS)).items() if "redundant" in text
    ]
    assert verdict == (True, "100% against 0% at most.")


@pytest.mark.parametrize(("residual", "changes", "faster"), [(10, True, True), (19, False, False), (40, True, False)])
def test_orders_differ_by_more_than_a_tenth(residual, changes, faster):
    cells = run("pooled", "pooled", [0.0]) + run("fixed order", "sequential", [9, 0.5], step=10)
    cells += run("residual order, by KL", "sequential", [9, 0.5], step=residual / 2)
    found = verdicts(schedules.orders(Results(cells), CLIENTS))
    text = f"adult B: the order of visits changes the communications {NAT[:-1]} by more than a tenth."
    assert found[text][0] is changes
    text = f"adult B: residual order, by KL, needs over a tenth fewer communications than a fixed order {NAT}"
    assert found[text][0] is faster


def many(ratio=2.0, fall=0.0):
    """Two and four clients alike, and the growth of synchronous PVI's communications by a ratio."""
    cells = []
    for number, step in ((2, 4), (4, 8)):
        problem = f"{number} clients alike"
        cells += run("pooled", "pooled", [0.0], problem)
        cells += run("sequential", "sequential", [9, 0.5], problem, step=step)
        times = 3 if number == 2 else 3 * ratio
        cells += run("synchronous, ρ = 1/M", "synchronous", [9, 3 - fall, 3, 0.5], problem, step=step * times)
    return Results(cells, MANY)


MANY = {f"{number} clients alike": [{"client": f"{k}", "rows": 5} for k in range(number)] for number in (2, 4)}


def test_the_growth_of_communications_and_stability_are_judged():
    found = verdicts(schedules.clients(many(), MANY))
    more = "clients alike: with more clients synchronous PVI, ρ = 1/M needs more times the communications of"
    more = f"{more} sequential PVI."
    assert found[more] == (True, "M = 2: 6.0 times; M = 4: 12.0 times.")
    assert verdicts(schedules.clients(many(ratio=0.5), MANY))[more][0] is False
    stable = "4 clients alike: with ρ = 1/M synchronous PVI is stable: its free energy never falls by 0.001 nats."
    assert found[stable][0] is True
    assert verdicts(schedules.clients(many(fall=0.01), MANY))[stable][0] is False


def test_the_figure_of_many_clients_has_a_panel_for_time(tmp_path):
    [drawing] = growth.figures(load("schedules-clients"), many())
    figure = drawing.draw(tmp_path / "figure.png")
    by_communications, by_clock = figure.axes
    assert [line.get_xdata().tolist() for line in by_communications.get_lines()] == [[2, 4], [2, 4]]
    sequential = next(line for line in by_communications.get_lines() if line.get_label() == "sequential PVI")
    assert sequential.get_ydata().tolist() == [8, 16]
    assert "time" in by_clock.get_ylabel()
    [other] = growth.figures(load("schedules-clients"), many(ratio=3))
    assert drawn(tmp_path / "figure.png") == drawing.digest != other.digest


def test_gaps_are_drawn_by_their_logarithms(tmp_path):
    cells = run("pooled", "pooled", [0.0]) + run("x", "sequential", [100, 1e-9], seeds=1)
    cells += run("x", "sequential", [1, 0.04], seeds=2)[1:]
    figure = draw(tmp_path / "figure.png", Results(cells), ["adult B"], "Title", ["gap"], "clock")
    [line] = figure.axes[0].get_lines()
    np.testing.assert_allclose(line.get_ydata(), [10, 0.02])
    assert figure.axes[0].get_yscale() == "log"
    assert "time" in figure.axes[0].get_xlabel()


def test_a_generated_problem_can_be_divided_among_a_thousand():
    data = source.generated()
    assert data.train.x.shape == (20_000, 9)
    assert 0.4 < data.train.y.mean() < 0.6
