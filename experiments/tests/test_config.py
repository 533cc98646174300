"""Experiments as data: what is in a configuration, and what is wrong with one."""

import dataclasses

import pytest

import partita as pt
import partita_experiments as experiments
from partita import InputError
from partita.methods import named, settings_of
from partita_experiments.problem import optimiser
from partita_experiments.problem import solver as make
from partita_experiments.runner import Plan, _given

QUICK = 'problems = [{ name = "q", data = "made up", solver = "newton", split = { kind = "given" } }]'
GOOD = """
title = "t"
question = "q"
seeds = 1
problems = [{ name = "p", data = "made up", solver = "newton", split = { kind = "given" } }]
runs = [{ method = "vcl", communications = 4 }]
[solvers]
newton = { kind = "newton" }
[quick]
problems = [{ name = "q", data = "made up", solver = "newton", split = { kind = "given" } }]
seeds = 1
rows = 10
communications = 4
"""


IMAGES = tuple(name for name in experiments.NAMES if name.startswith("mnist"))
TABLES = ("uci", "uci-adam", "mortality", "heart")


@pytest.mark.parametrize("name", TABLES)
def test_the_experiments_on_tables_can_be_read_and_have_every_method(name):
    experiment = experiments.load(name)
    assert experiment.seeds == 5
    assert {run.method for run in experiment.runs} - {"incremental_vi"} == {
        "pooled",
        "alone",
        "sequential",
        "synchronous",
        "asynchronous",
        "global_vi",
        "stochastic_global_vi",
        "bcm_same",
        "bcm_split",
        "vcl",
        "streaming_vb",
    }
    assert {problem.data for problem in experiment.quick.problems} <= {"adult", "made up"}


def test_the_papers_settings_are_there():
    """`sec:appen:experiments:uci`, `sec:experiments:mp`."""
    uci = experiments.load("uci")
    assert [(p.name, p.split["beta"], p.split["kappa"]) for p in uci.problems] == [
        ("adult A", 0.0, 0.0),
        ("adult B", 0.7, -3.0),
        ("bank A", 0.0, 0.0),
        ("bank B", 0.7, -3.0),
        ("credit A", 0.0, 0.0),
        ("credit B", 0.3, -0.7),
    ]
    adam = experiments.load("uci-adam")
    assert [(p.name, p.split) for p in adam.problems] == [(p.name, p.split) for p in uci.problems]
    assert {key: adam.solvers["adam"][key] for key in ("learning_rate", "batch_size")} == {
        "learning_rate": 0.01,
        "batch_size": 128,
    }
    damping = {run.method: run.settings.get("damping") for run in uci.runs}
    assert damping["synchronous"] == 0.2
    mortality = experiments.load("mortality")
    assert {run.method: run.settings.get("damping") for run in mortality.runs}["synchronous"] == 0.4
    assert [problem.hidden for problem in mortality.problems] == [(), (50, 50)]
    assert all(problem.split == {"kind": "k_means", "clients": 5} for problem in mortality.problems)


@pytest.mark.parametrize("name", IMAGES)
def test_the_experiments_on_images_have_the_papers_settings(name):
    """`sec:experiments:fmnist`, `sec:appen:experiments:fmnist`."""
    experiment = experiments.load(name)
    [problem] = experiment.problems
    many = name in ("mnist-inhomogeneous", "mnist-ablation")
    split = {"kind": "label_shards", "clients": 100, "shards": 2} if many else {"kind": "equal_random", "clients": 10}
    assert problem.split == split | {"seed": 0}
    assert (problem.data, problem.model, problem.hidden, problem.samples) == ("mnist", "network", (200,), 10)
    for solver in experiment.solvers.values():
        assert (solver["learning_rate"], solver["batch_size"], solver["window"]) == (0.002, 512, "epoch")
    for run in experiment.runs:
        solver = make(experiment, run.solver or problem.solver)
        assert isinstance(solver, pt.Gradient)
        own = {"solver": solver} if "solver" in settings_of(run.named) else {}
        if "optimiser" in run.settings:
            own["optimiser"] = optimiser(run.settings["optimiser"])
        assert named(run.named, **run.settings | own, start=pt.MeanFieldGaussian.standard_normal(1))
    assert {problem.data for problem in experiment.quick.problems} == {"digits"}


def test_dampings_are_the_papers():
    dampings = {
        name: {run.method: run.settings.get("damping") for run in experiments.load(f"mnist-{name}").runs}
        for name in ("homogeneous", "inhomogeneous")
    }
    assert dampings["homogeneous"]["synchronous"] == 0.2
    assert (dampings["inhomogeneous"]["synchronous"], dampings["inhomogeneous"]["sequential"]) == (0.025, 0.3)


@pytest.mark.parametrize("name", ["mnist-early-stopping", "digits-early-stopping"])
def test_runs_with_early_stopping_restart_and_monitor_the_likelihood(name):
    """The server stops global VI; of sequential PVI there are visits begun at the posterior as well."""
    experiment = experiments.load(name)
    assert experiment.measured == ("train",)
    plain = {run.curve: run for run in experiment.runs if "early" not in run.curve}
    early = {run.curve: run for run in experiment.runs if "early" in run.curve}
    begun = early.pop("sequential, early stopping from the posterior")
    assert (begun.solver, begun.settings) == ("early", plain["sequential"].settings)
    globally = early.pop("global_vi, early stopping")
    assert globally == dataclasses.replace(plain.pop("global_vi"), name=globally.name, early=globally.early)
    assert globally.early.patience == experiment.solvers["early"]["patience"]
    assert set(early) == {f"{name}, early stopping" for name in plain}
    for name, run in plain.items():
        other = early[f"{name}, early stopping"]
        assert (other.method, other.communications) == (run.method, run.communications)
        assert other.settings == {**run.settings, "restart": True}
        assert experiment.solvers[other.solver] == {**experiment.solvers["adam"], "watch": "ell"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "t"', "", "has an experiment without 'title'"),
        ('title = "t"', "title = t", "is not a TOML file"),
        ("seeds = 1\nproblems", "seed = 1\nproblems", "There is no setting of experiment in .* named 'seed'"),
        ('method = "vcl"', 'method = "vlc"', "There is no method in .* named 'vlc'"),
        (
            '{ name = "p", data = "made up", solver = "newton"',
            '{ name = "p", data = "made up", solver = "euler"',
            "There is no solver in .* named 'euler'",
        ),
        (", communications = 4 }", " }", "without 'communications'"),
        ("seeds = 1\nproblems", 'seeds = "1"\nproblems', "has '1' for 'seeds', where a whole number is expected"),
        ("seeds = 1\nproblems", "seeds = 0\nproblems", "needs at least one seed"),
        (QUICK, "problems = []", "one seed and one problem"),
        (QUICK, QUICK.replace("newton", "euler"), "There is no solver in .* named 'euler'"),
        (QUICK, 'problems = "p"', "has 'p' for 'problems', where a list or table is expected"),
        ('runs = [{ method = "vcl", communications = 4 }]', "runs = 3", "has 3 for 'runs'"),
        ('runs = [{ method = "vcl", communications = 4 }]', 'runs = ["vcl"]', "has 'vcl' for 'runs'"),
        ('runs = [{ method = "vcl", communications = 4 }]', "runs = []", "needs at least one method"),
        ("communications = 4 }]", 'communications = 4 }, { method = "vcl", communications = 8 }]', "each only once"),
        (
            "communications = 4 }]",
            'communications = 4 }, { method = "bcm_same", name = "vcl", communications = 8 }]',
            "each only once",
        ),
        ('method = "vcl"', 'method = "vcl", solver = "euler"', "There is no solver in .* named 'euler'"),
        (
            'title = "t"',
            'title = "t"\npanels = ["brier"]',
            "has 'brier' for 'panels', where one of error, nll, pruned, train_nll, gap is expected",
        ),
        ('title = "t"', 'title = "t"\nby = []', "needs at least one axis"),
        ('title = "t"', 'title = "t"\npanels = ["nll", "nll"]', "each only once"),
        (
            'p", data = "made up", solver = "newton", split = { kind = "given" }',
            'p", data = "made up", solver = "newton", split = { }',
            "has a split without 'kind' in 'p'",
        ),
        ('newton = { kind = "newton" }', "newton = { tolerance = 1 }", "has a solver without 'kind', 'newton'"),
        ('method = "vcl"', 'method = "vcl", problems = ["r"]', "There is no problem in .* named 'r'"),
        ('title = "t"', 'title = "t"\nname = "n"', "gives the experiment a name of its own"),
        ('name = "p", ', 'name = "p", date = 1, ', "There is no setting of problem in .* named 'date'"),
    ],
)
def test_an_invalid_configuration_raises_an_error(tmp_path, old, new, message):
    path = tmp_path / "mine.toml"
    assert GOOD.count(old) == 1
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(InputError, match=message):
        experiments.load("heart", path)


def test_a_user_configuration_is_loaded(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert [run.method for run in experiments.load("heart", path).runs] == ["vcl"]


def test_a_method_may_run_twice_under_two_names(tmp_path):
    path = tmp_path / "mine.toml"
    more = 'communications = 4 }, { method = "vcl", name = "vcl, again", communications = 8 }]'
    path.write_text(GOOD.replace("communications = 4 }]", more))
    assert [run.curve for run in experiments.load("heart", path).runs] == ["vcl", "vcl, again"]


def test_a_run_may_have_a_budget_for_each_problem(tmp_path):
    path = tmp_path / "mine.toml"
    split = 'split = { kind = "given" } }]'
    second = split.replace("]", ', { name = "r", data = "made up", solver = "newton", split = { kind = "given" } }]')
    runs = [
        f'{{ method = "vcl", communications = {4 * k}, problems = ["{name}"] }}' for k, name in ((1, "p"), (2, "r"))
    ]
    text = GOOD.replace(split, second, 1).replace('{ method = "vcl", communications = 4 }', ", ".join(runs))
    path.write_text(text)
    experiment = experiments.load("heart", path)
    cells = [(cell.problem.name, cell.run.communications) for cell in Plan(experiment, tmp_path).cells()]
    assert cells == [("p", 4), ("r", 8)]
    assert [run.curve for run in experiment.smoke_version().runs] == ["vcl"]
    # where it is not run is no setting of a run: on its problems its results stay
    alone = next(Plan(experiments.load("heart", path), tmp_path).cells())
    everywhere = alone._replace(run=dataclasses.replace(alone.run, problems=()))
    assert Plan(experiment, tmp_path).digest(alone) == Plan(experiment, tmp_path).digest(everywhere)


def test_the_schedules_have_the_same_problems_and_one_over_m():
    plain, orders = experiments.load("schedules"), experiments.load("schedules-orders")
    assert plain.problems == orders.problems
    clients = experiments.load("schedules-clients")
    many = {problem.name: problem.split["clients"] for problem in clients.problems}
    damped = [run for run in clients.runs if run.curve == "synchronous, ρ = 1/M"]
    assert len(damped) == len(many)
    for run in damped:
        assert run.settings["damping"] == pytest.approx(1 / many[run.problems[0]], rel=1e-9)


def test_an_unknown_experiment_raises_an_error_that_lists_the_known_ones():
    known = "choose one of uci, uci-adam, mortality, heart"
    with pytest.raises(InputError, match=f"There is no experiment named 'mnist': {known}"):
        experiments.load("mnist")


def test_whats_left_out_of_a_run_leaves_its_digest(tmp_path):
    """A setting that a later version adds to runs does not make older results stale."""
    experiment = experiments.load("heart")
    plan = Plan(experiment, tmp_path)
    cell = next(plan.cells())
    with_early = cell._replace(run=dataclasses.replace(cell.run, early=pt.early_stopping.EarlyStopping()))
    assert "early" not in _given(cell.run)
    assert plan.digest(with_early) != plan.digest(cell)
    assert Plan(dataclasses.replace(experiment, measured=("train",)), tmp_path).digest(cell) != plan.digest(cell)
