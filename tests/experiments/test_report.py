"""Curves, tables, statements, figures and the two forms of a report."""

import numpy as np
import pytest

from partita.experiments import statements
from partita.experiments.figure import STYLES, draw
from partita.experiments.report import Grid, Heading, Picture, Statement, Text, markdown, page
from partita.experiments.results import HEADER, Results


def cell(method, nll, seed=0, problem="credit B", step=10, statuses=("budget spent",)):
    rows = [
        {
            "communications": step * (k + 1),
            "clock": 2.0 * (k + 1),
            "rounds": k + 1,
            "gradient_steps": 3,
            "free_energy": -1.0,
            "residual": None,
            "nll": value,
            "error": value and value / 2,
        }
        for k, value in enumerate(nll)
    ]
    return {
        "problem": problem,
        "method": method,
        "seed": seed,
        "rows": rows,
        "statuses": list(statuses),
        "seconds": 1.0 + seed,
    }


CELLS = [
    cell("sequential", [0.9, 0.5, 0.305, 0.301]),
    cell("sequential", [0.9, 0.4, 0.303], seed=1),
    cell("global_vi", [0.8, 0.5, 0.4, 0.3], step=100),
    cell("global_vi", [0.8, 0.5, 0.4, 0.3], step=100, seed=1),
]


def test_a_run_that_has_ended_keeps_its_last_value_in_the_curve():
    curve = Results(CELLS).curve("credit B", "sequential")
    assert curve.x.tolist() == [10, 20, 30, 40]
    assert curve.values.tolist() == [[0.9, 0.5, 0.305, 0.301], [0.9, 0.4, 0.303, 0.303]]


def test_before_its_first_evaluation_a_run_has_no_value():
    results = Results([cell("vcl", [0.5, 0.4]), cell("vcl", [0.3], seed=1, step=20)])
    np.testing.assert_array_equal(results.curve("credit B", "vcl").values, [[0.5, 0.4], [np.nan, 0.3]])


@pytest.mark.parametrize(
    ("nll", "reached"),
    [([0.5, 0.3, 0.3], 20), ([0.3, 0.5, 0.3], 30), ([0.3, 0.3, 0.3], 10), ([0.3, 0.3, 0.5], np.inf), ([None, 0.3], 20)],
)
def test_a_level_is_reached_where_it_is_reached_for_good(nll, reached):
    results = Results([cell("vcl", nll)])
    assert results.reach("credit B", "vcl", 0.3).tolist() == [reached]
    clock = np.inf if reached == np.inf else reached / 5
    assert results.reach("credit B", "vcl", 0.3, "clock").tolist() == [clock]


def test_clients_alone_count_as_their_mean():
    alone = cell("alone", [0.5, 0.7])
    assert Results([alone]).final("credit B", "alone").tolist() == [pytest.approx(0.6)]


def test_the_table_is_tidy():
    lines = Results(CELLS).table().splitlines()
    assert lines[0] == ",".join(HEADER)
    assert len(lines) == 1 + 4 + 3 + 4 + 4
    assert lines[1].startswith("credit B,sequential,0,,10,1,3,2.0,-1.0,,0.9,0.45")


def verdicts(parts):
    return {part.text: (part.holds, part.seen) for part in parts if isinstance(part, Statement)}


def everything(**nll):
    """Two seeds of every method of the UCI experiment, which ends at 0.3 unless told otherwise."""
    methods = ["sequential", "synchronous", "asynchronous", "global_vi", "bcm_same", "bcm_split", "vcl", "streaming_vb"]
    return Results([cell(method, nll.get(method, [0.5, 0.3]), seed) for method in methods for seed in (0, 1)])


def test_statements_are_judged_by_the_figures():
    clients = {
        "credit B": [{"client": "a", "rows": 36, "positive": 0.944}, {"client": "b", "rows": 67, "positive": 0.3}]
    }
    results = everything(sequential=[0.5, 0.309], synchronous=[0.5, 0.312], vcl=[0.32], bcm_same=[0.309])
    found = verdicts(statements.uci(results, clients))
    assert found["credit B: sequential PVI ends within 0.01 test NLL of global VI."] == (
        True,
        "0.0090 ± 0.0000 above it.",
    )
    assert found["credit B: synchronous PVI ends within 0.01 test NLL of global VI."][0] is False
    worse = "ends worse than global VI, by more than 0.01 and by more than 2 sd."
    assert found[f"credit B: VCL {worse}"][0] is True
    assert found[f"credit B: BCM (same) {worse}"][0] is False
    rises = "credit B: streaming VB ends above its own lowest NLL by more than 2 sd."
    assert found[rises][0] is False
    found = verdicts(statements.uci(everything(streaming_vb=[0.5, 0.3, 0.35]), clients))
    assert found[rises] == (True, "ends 0.0500 ± 0.0000 above its lowest.")


def test_communications_and_time_are_compared_with_global_vi():
    cells = [*CELLS, cell("synchronous", [0.9, 0.3]), cell("asynchronous", [0.9, 0.4])]
    grids = [part for part in statements._efficiency(Results(cells)) if isinstance(part, Grid)]
    # global VI is at 400 communications and 8 units of time; medians of sequential are 35 and 7
    assert grids[0].rows == [["credit B", "30 (13×)", "20 (20×)", "∞", "400"]]
    assert grids[1].rows == [["credit B", "6 (1×)", "4 (2×)", "∞", "8"]]


PARTS = [
    Heading("Clients"),
    Text("a < b"),
    Grid(["name", "rows"], [["x", "1"], ["y", "2"]]),
    Picture("adult.png", "Adult."),
    Statement("PVI ends within 0.01.", True, "0.001."),
    Statement("VCL fails.", False, "it did not."),
]


def test_a_report_is_written_as_markdown():
    text = markdown("Title", PARTS)
    assert text.startswith(
        "# Title\n\n## Clients\n\na < b\n\n| name | rows |\n| --- | ---: |\n| x | 1 |\n| y | 2 |\n\n"
    )
    assert "![Adult.](adult.png)" in text
    assert "- confirmed: PVI ends within 0.01. Seen: 0.001." in text
    assert "- **not confirmed**: VCL fails. Seen: it did not." in text


def test_a_report_is_written_as_a_page_with_its_texts_escaped():
    text = page("Title", PARTS)
    assert "<h2>Clients</h2>" in text
    assert "<p>a &lt; b</p>" in text
    assert "<tr><th>name</th><th>rows</th></tr><tr><td>x</td><td>1</td></tr>" in text
    assert '<img src="adult.png"' in text
    assert "<b>not confirmed</b>: VCL fails." in text


def test_lines_can_be_told_apart_without_colour():
    assert len({(str(line), marker) for _, _, line, marker in STYLES.values()}) == len(STYLES)


def test_a_figure_is_drawn(tmp_path):
    cells = [cell(method, [0.5, 0.4], seed) for method in STYLES for seed in (0, 1)]
    draw(tmp_path / "figure.png", Results(cells), ["credit B"], "Title")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
