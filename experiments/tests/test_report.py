"""Curves, tables, statements, figures and the two forms of a report."""

import numpy as np
import pytest

from partita_experiments import judge, statements
from partita_experiments.config import NAMES
from partita_experiments.figure import STYLES, draw, label, styles
from partita_experiments.report import Heading, Picture, ReportTable, Statement, Subheading, Text, markdown, page
from partita_experiments.results import Results
from support.made_up_cells import CLIENTS, cell, results_of_all_methods, verdicts

CELLS = [
    cell("sequential", [0.9, 0.5, 0.306, 0.301]),
    cell("sequential", [0.9, 0.4, 0.303], seed=1),
    cell("global_vi", [0.8, 0.5, 0.4, 0.3], step=100),
    cell("global_vi", [0.8, 0.5, 0.4, 0.3], step=100, seed=1),
]


def test_a_run_that_has_ended_keeps_its_last_value_in_the_curve():
    curve = Results(CELLS).curve("credit B", "sequential")
    assert curve.x.tolist() == [10, 20, 30, 40]
    assert curve.values.tolist() == [[0.9, 0.5, 0.306, 0.301], [0.9, 0.4, 0.303, 0.303]]


def test_before_its_first_evaluation_a_run_has_no_value():
    results = Results([cell("vcl", [0.5, 0.4]), cell("vcl", [0.3], seed=1, step=20)])
    np.testing.assert_array_equal(results.curve("credit B", "vcl").values, [[0.5, 0.4], [np.nan, 0.3]])


@pytest.mark.parametrize(
    ("nll", "reached"),
    [
        ([0.5, 0.3, 0.3], 20),
        ([0.3, 0.5, 0.3], 30),
        ([0.3, 0.305, 0.295], 10),
        ([0.3, 0.3, 0.5], np.inf),
        ([0.1, 0.2, 0.3], 30),  # below is not there yet
        (["inf", 0.3], 20),
    ],
)
def test_a_target_is_reached_when_the_metric_stays_there(nll, reached):
    results = Results([cell("vcl", nll)])
    assert results.reach("credit B", "vcl", 0.3, 0.0051).tolist() == [reached]
    assert results.reach("credit B", "vcl", 0.3, 0.0051, "clock").tolist() == [reached / 5]


def test_clients_alone_count_as_their_mean():
    alone = cell("alone", [0.5, 0.7])
    assert Results([alone]).final("credit B", "alone").tolist() == [pytest.approx(0.6)]


WORSE = "ends worse than global VI, by more than 0.01 and by more than 2 sd."


def uci(**changes):
    return verdicts(statements.uci(results_of_all_methods(**changes), CLIENTS))


def test_ending_near_global_vi_is_judged_by_every_seed():
    found = uci(sequential=[0.5, 0.309], synchronous=[0.5, 0.312])
    near = "credit B: {} ends within 0.01 test NLL of global VI."
    assert found[near.format("sequential PVI")] == (True, "0.0090 ± 0.0000 above it.")
    assert found[near.format("synchronous PVI")][0] is False
    # gaps of both signs do not cancel
    assert uci(noise={"sequential": 2})[near.format("sequential PVI")] == (False, "0.0000 ± 0.0200 above it.")


@pytest.mark.parametrize(("free_energy", "judged"), [(-2.0, True), (0.0, False)])
def test_statements_are_not_judged_if_global_vi_has_not_converged(free_energy, judged):
    """It has not where pooled rows reach a higher free energy with other predictions."""
    pooled = [cell("pooled", [0.2], seed, free_energy=free_energy) for seed in range(3)]
    results = Results([*results_of_all_methods(sequential=[0.5, 0.2]).cells, *pooled])
    told = statements.uci(results, CLIENTS)
    found = verdicts(told)
    text = "credit B: sequential PVI ends within 0.01 test NLL of global VI."
    assert found[text][0] is (False if judged else None)
    (lacks,) = [part.lacks for part in told if isinstance(part, Statement) and part.text == text]
    assert ("still 0.1000 from its optimum" in lacks) is not judged


def uci_with(free_energy, clients=CLIENTS):
    """Statements about runs of which global VI's have this free energy, evaluation by evaluation."""
    cells = [one for one in results_of_all_methods(vcl=[0.4]).cells if one["method"] != "global_vi"]
    reference = [cell("global_vi", [0.3] * len(free_energy), seed, step=100) for seed in range(3)]
    for one in reference:
        for row, value in zip(one["rows"], free_energy, strict=True):
            row["free_energy"] = value
    told = statements.uci(Results([*cells, *reference], clients), clients)
    return [part for part in told if isinstance(part, Statement)]


RISING = np.linspace(-200.0, -100.0, 100)


@pytest.mark.parametrize(
    ("free_energy", "judged"),
    [
        (RISING, False),  # by ten nats in the last tenth, a tenth of a nat for each of 103 rows
        (RISING / 1000, True),  # by a hundredth of a nat
        (RISING / 990, True),
        (RISING / 900, False),  # a little more than allowed
        (RISING[::-1], False),
        (np.where(np.arange(100) < 50, RISING, -100.0), True),
        (-100 + 20 * np.random.default_rng(0).normal(size=100), True),  # sampled, and flat
        (RISING + np.random.default_rng(0).normal(size=100), False),
        (np.array([-1.0]), False),  # of one evaluation nobody knows
    ],
)
def test_nothing_is_judged_against_a_reference_whose_free_energy_still_moves(free_energy, judged):
    told = uci_with(free_energy)
    against = [part for part in told if "global VI" in part.text]
    assert len(against) > 5
    for part in against:
        assert (part.holds is None) is not judged
        assert ("Global VI had not converged: in the last tenth" in part.told) is not judged
    rest = [part for part in told if part not in against]
    assert rest
    assert all(part.holds is not None for part in rest), "these are not measured against it"


def test_a_reference_that_has_converged_needs_no_long_history():
    cells = [one | {"statuses": ["converged"]} for one in results_of_all_methods().cells]
    assert judge.moving(Results(cells), "credit B", "global_vi") == ""


@pytest.mark.parametrize(
    ("nll", "noise", "holds"),
    [(0.32, 0, True), (0.309, 0, False), (0.32, 0.9, True), (0.32, 1.1, False), (0.28, 0, False), (np.inf, 0, True)],
)
def test_worse_means_by_a_margin_and_by_two_sd(nll, noise, holds):
    assert uci(vcl=[nll], noise={"vcl": noise})[f"credit B: VCL {WORSE}"][0] is holds


def test_a_lone_seed_has_no_sd():
    assert judge.spread(np.array([0.25])) == "0.2500"
    assert judge.spread(np.array([0.25, 0.75])) == "0.5000 ± 0.3536"


def test_statements_are_not_judged_with_two_seeds():
    cells = [item for item in results_of_all_methods(vcl=[0.4]).cells if item["seed"] < 2]
    assert verdicts(statements.uci(Results(cells), CLIENTS))[f"credit B: VCL {WORSE}"][0] is None


@pytest.mark.parametrize(
    ("values", "seeds"),
    [
        ([0.1], "3 seeds, and there is 1."),
        ([-5.0], "3 seeds, and there is 1."),
        ([0.5, 0.5], "3 seeds by the sd seen, and there are 2."),
        ([0.2, 0.3], "3 seeds by the sd seen, and there are 2."),
        ([0.1, 0.3], "12 seeds by the sd seen"),  # mean 0.2, sd 0.1414, threshold 0.2828
        ([0.15, 0.35], "75 seeds"),
        ([0.145, 0.31], "more than 100 seeds"),
        ([np.nan, 0.1], "no number of seeds would do before it is run again"),
    ],
)
def test_what_is_not_judged_says_how_many_seeds_it_takes(values, seeds):
    found = judge.clearly("It is higher.", np.array(values), 0.01, "so much.")
    assert found.holds is None
    assert seeds in found.told


def test_so_many_seeds_put_the_mean_two_standard_errors_from_where_the_verdict_changes():
    values, bound = np.array([0.1, 0.3]), 0.01
    sd, threshold = values.std(ddof=1), 2 * values.std(ddof=1)
    away = abs(values.mean() - max(bound, threshold))
    assert 2 * sd / np.sqrt(12) <= away < 2 * sd / np.sqrt(11)


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("name", statements.PAGES)
def test_no_statement_is_left_without_saying_what_it_takes(name, seeds):
    problems = ("adult B", "credit A") if name.startswith("uci") else ("images",)
    cells = [one for problem in problems for one in results_of_all_methods(problem).cells if one["seed"] < seeds]
    early = [one | {"run": f"{one['run']}, early stopping"} for one in cells]
    clients = dict.fromkeys(problems, CLIENTS["credit B"])
    told = statements.PAGES[name](Results([*cells, *early], clients), clients)
    open_ones = [part for part in told if isinstance(part, Statement) and part.holds is None]
    assert all("takes" in part.lacks for part in open_ones)
    assert open_ones or name not in ("uci", "uci-adam", "mnist-homogeneous", "mnist-inhomogeneous"), "some are open"


@pytest.mark.parametrize(
    ("nll", "noise", "holds"), [([0.5, 0.3, 0.35], 0, True), ([0.5, 0.3], 0, False), ([0.3, 0.303], 0, False)]
)
def test_streaming_rises_where_it_ends_above_its_lowest(nll, noise, holds):
    rises = "credit B: streaming VB ends above its own lowest NLL by more than 2 sd, and by more than 0.005."
    assert uci(streaming_vb=nll, noise={"streaming_vb": noise})[rises][0] is holds


@pytest.mark.parametrize(("end", "holds"), [(0.304, True), (0.306, False)])
def test_over_counting_is_harmless_where_it_ends_with_global_vi(end, holds):
    clients = {"adult A": CLIENTS["credit B"]}
    found = verdicts(statements.uci(results_of_all_methods("adult A", streaming_vb=[0.5, end]), clients))
    same = "adult A: streaming VB converges to the same predictions as PVI (within 0.005 of global VI's NLL)."
    assert found[same][0] is holds


@pytest.mark.parametrize(("nll", "holds"), [([0.3, 0.3], True), ([0.2, 0.3], False), ([0.5, 0.3], False)])
def test_a_single_round_suffices_if_ten_communications_reach_the_target(nll, holds):
    clients = {"adult A": CLIENTS["credit B"]}
    found = verdicts(statements.uci(results_of_all_methods("adult A", synchronous=nll), clients))
    once = "adult A: with clients alike, synchronous PVI converges after a single round (10 communications)."
    assert found[once][0] is holds


def test_smoothness_is_judged_by_the_total_rise_of_the_nll():
    smooth, rough = [0.5, 0.4, 0.3], [0.5, 0.3, 0.4, 0.3]
    for logistic, network, holds in ((smooth, rough, True), (rough, smooth, False)):
        cells = [
            *results_of_all_methods("logistic regression", sequential=logistic).cells,
            *results_of_all_methods("network", sequential=network).cells,
        ]
        found = verdicts(statements.mortality(Results(cells), {"network": CLIENTS["credit B"]}))
        assert found["sequential PVI converges more smoothly for logistic regression than for the network."][0] is holds


def test_the_hospitals_stand_beside_published_accuracies():
    grids = [
        part for part in statements.heart(results_of_all_methods("hospitals"), CLIENTS) if isinstance(part, ReportTable)
    ]
    assert ["sequential PVI", "0.800"] in grids[-1].rows
    assert ["FLamby: pooled", "0.795"] in grids[-1].rows


@pytest.mark.parametrize("methods", [["vcl"], ["sequential"], ["sequential", "global_vi"], ["global_vi", "vcl"]])
@pytest.mark.parametrize("name", statements.PAGES)
def test_a_report_needs_no_particular_methods(name, methods):
    """What was not run is left out."""
    problem = {"uci": "adult B", "mortality": "network", "heart": "hospitals"}.get(name, "images")
    cells = [item for item in results_of_all_methods(problem).cells if item["method"] in methods]
    assert markdown("Title", statements.PAGES[name](Results(cells), CLIENTS))


def test_every_experiment_has_a_page():
    assert set(statements.PAGES) == set(NAMES)


def test_communications_and_time_are_compared_with_global_vi():
    cells = [*CELLS, cell("synchronous", [0.9, 0.3]), cell("asynchronous", [0.9, 0.4])]
    grids = [part for part in judge.efficiency(Results(cells)) if isinstance(part, ReportTable)]
    assert grids[0].rows == [["credit B", "35 (11×)", "20 (20×)", "∞", "400"]]
    assert grids[1].rows == [["credit B", "7", "4", "∞"]]


PARTS = [
    Heading("Clients"),
    Subheading("`adult` A"),
    Text("a < b"),
    ReportTable(["name", "rows"], [["x", "1"], ["y", "2"]]),
    Picture("adult.png", "Adult."),
    Statement("PVI ends within 0.01.", True, "0.001."),
    Statement("VCL fails.", False, "it did not."),
]


def test_a_report_is_written_as_markdown():
    text = markdown("Title", PARTS)
    assert text.startswith(
        "# Title\n\n## Clients\n\n### `adult` A\n\na < b\n\n| name | rows |\n| --- | ---: |\n| x | 1 |\n| y | 2 |\n\n"
    )
    assert "![Adult.](adult.png)" in text
    assert "- confirmed: PVI ends within 0.01. Seen: 0.001." in text
    assert "- **not confirmed**: VCL fails. Seen: it did not." in text


def test_a_report_is_written_as_a_page_with_its_texts_escaped():
    text = page("Title", PARTS)
    assert "<h2>Clients</h2>\n<h3>adult A</h3>" in text
    assert "<p>a &lt; b</p>" in text
    assert "<tr><th>name</th><th>rows</th></tr><tr><td>x</td><td>1</td></tr>" in text
    assert '<img src="adult.png"' in text
    assert "<b>not confirmed</b>: VCL fails." in text


def test_lines_can_be_told_apart_without_colour():
    assert len({(str(line), marker) for _, _, line, marker in STYLES.values()}) == len(STYLES)


def test_a_figure_is_drawn(tmp_path):
    cells = [cell(method, [0.5, 0.4], seed) for method in STYLES for seed in (0, 1)]
    figure = draw(tmp_path / "figure.png", Results(cells), ["credit B"], "Title")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    error, nll = figure.axes
    lines = {line.get_label(): line for line in nll.get_lines()}
    assert list(lines["sequential PVI"].get_xdata()) == [10, 20]
    assert list(lines["sequential PVI"].get_ydata()) == [0.5, 0.4]
    assert len(figure.legends[0].get_texts()) == len(STYLES)
    assert error.get_xscale() == nll.get_xscale() == "log"


def test_runs_without_a_style_get_one_that_differs_without_colour():
    variants = [cell("sequential", [0.5], run=f"sequential, ρ = {k}") for k in range(20)]
    plain = [cell(method, [0.5]) for method in STYLES]
    found = styles(Results([*plain, *variants, cell("pooled", [0.5]), cell("alone", [0.5])]))
    assert list(found) == [*STYLES, *(f"sequential, ρ = {k}" for k in range(20))]
    assert len({(str(style.line), style.marker) for style in found.values()}) == len(found)
    assert found["sequential"] == STYLES["sequential"]
    assert found["sequential, ρ = 3"].name == "sequential PVI, ρ = 3"
    assert found["sequential, ρ = 3"].colour == found["sequential"].colour
    assert len({style.colour for style in styles(Results(variants)).values()}) > 5


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("vcl", "VCL"),
        ("pooled", "pooled rows"),
        ("vcl, early stopping", "VCL, early stopping"),
        ("mine", "mine"),
        ("mine, twice", "mine, twice"),
    ],
)
def test_runs_are_called_after_their_methods(run, name):
    assert label(run) == name


def test_a_figure_has_the_panels_and_axes_asked_for(tmp_path):
    cells = [cell(method, [0.5, 0.4], seed, pruned=[3, 7]) for method in STYLES for seed in (0, 1)]
    panels = ["error", "nll", "pruned"]
    figure = draw(tmp_path / "figure.png", Results(cells), ["credit B"], "Title", panels, "synchronous_steps", True)
    error, nll, pruned = figure.axes
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "log", "linear"]
    low, high = nll.get_ylim()
    assert low < 0.4 < 0.5 < high, "logarithmic axes show the whole way"
    line = next(line for line in pruned.get_lines() if line.get_label() == "sequential PVI")
    assert list(line.get_xdata()) == [50, 100]
    assert list(line.get_ydata()) == [3, 7]
    assert "gradient steps" in error.get_xlabel()
    assert pruned.get_ylabel() == "pruned parameters"


def test_zero_errors_and_zero_pruned_parameters_can_be_drawn(tmp_path):
    cells = [cell("sequential", [0.5, 0.4], error=0.0)]
    for log in (False, True):
        assert draw(tmp_path / "figure.png", Results(cells), ["credit B"], "Title", ["error", "pruned"], log=log)


@pytest.mark.filterwarnings("error")
def test_a_run_with_an_infinite_metric_appears_only_in_the_legend(tmp_path):
    cells = [cell("sequential", [0.5, 0.4]), cell("bcm_same", [np.inf])]
    figure = draw(tmp_path / "figure.png", Results(cells), ["credit B"], "Title", ["nll"], log=True)
    assert figure.axes[0].get_ylim()[1] < 1
    assert "BCM (same)" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_metric_on_the_way_is_the_last_that_was_measured():
    results = Results([cell("vcl", [0.5, 0.4, 0.3], error=[0.3, 0.2, 0.25])])
    points = (5, 10, 19, 20, 1000)
    values = [results.at("credit B", "vcl", point)[0] for point in points]
    np.testing.assert_array_equal(values, [np.nan, 0.5, 0.5, 0.4, 0.3])
    assert results.at("credit B", "vcl", 20, "error").tolist() == [0.2]
    levels = {level: results.first("credit B", "vcl", level)[0] for level in (0.5, 0.3, 0.29, 0.2, 0.1)}
    assert levels == {0.5: 10, 0.3: 10, 0.29: 20, 0.2: 20, 0.1: np.inf}
    assert results.reach("credit B", "vcl", 0.25, 0.051, metric="error").tolist() == [10]
    assert results.reach("credit B", "vcl", 0.25, 0.01, metric="error").tolist() == [30]
