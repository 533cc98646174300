"""Cells run once each, survive interruption, and give the same table whatever happens on the way."""

import dataclasses
import json
import multiprocessing
import os
import signal
import threading
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import partita as pt
import partita_experiments as experiments
from partita import InputError
from partita.data.preprocess import federated, summarise
from partita.engines import LocalEngine
from partita.server.state import init
from partita_experiments import runner, store
from partita_experiments.config import Run
from partita_experiments.problem import divide, fingerprint, prepare, sizes_and_labels, solver
from partita_experiments.results import Results
from partita_experiments.runner import Plan, _evaluated, execute
from partita_experiments.source import load, synthetic_frames
from support.steps import step


def quiet(done, total, last):
    pass


def plan(folder, **changes):
    experiment = experiments.load("heart").smoke_version()
    runs = tuple(run for run in experiment.runs if run.method in ("sequential", "vcl", "global_vi", "alone"))
    return Plan(dataclasses.replace(experiment, runs=runs, **changes), folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run: its plan and the cells' results."""
    made = plan(tmp_path_factory.mktemp("whole"))
    return made, execute(made, 1, quiet)


def test_every_cell_has_a_result_with_finite_metrics(whole):
    made, cells = whole
    assert [(cell["problem"], cell["seed"], cell["method"]) for cell in cells] == [
        (cell.problem.name, cell.seed, cell.run.method) for cell in made.cells()
    ]
    for cell in cells:
        assert all(np.isfinite([row["nll"], row["error"], row["free_energy"]]).all() for row in cell["rows"])
        assert all(0 <= row["pruned"] <= 13 for row in cell["rows"])
        assert all(row["synchronous_steps"] <= row["gradient_steps"] for row in cell["rows"])
    alone = next(cell for cell in cells if cell["method"] == "alone")
    owners = ["owner 0", "owner 1", "owner 2", "owner 3"]
    assert [row["client"] for row in alone["rows"]] == owners
    # whose answer a step was made of, where it was one client's
    one, all_ = (next(cell for cell in cells if cell["method"] == name)["rows"] for name in ("sequential", "global_vi"))
    assert sorted(row["client"] for row in one[:4]) == owners
    assert not any("client" in row for row in all_)


def numbers(cells):
    """What does not depend on how long it took."""
    return [{name: value for name, value in cell.items() if name != "seconds"} for cell in cells]


def only(folder, run, **changes):
    """The result of one run with one seed."""
    made = plan(folder)
    experiment = dataclasses.replace(made.experiment, runs=(run,), seeds=1, **changes)
    [cell] = execute(made._replace(experiment=experiment), 1, quiet)
    return cell


def test_training_rows_are_measured_where_that_is_asked_for(tmp_path):
    """Owners have as many rows each, so that the NLL on all is the mean of those on each one's."""
    cell = only(tmp_path, Run("vcl", 4), measured=("train", "clients"))
    assert [len(row["by_recency"]) for row in cell["rows"]] == [1, 2, 3, 4]
    last = cell["rows"][-1]
    np.testing.assert_allclose(np.mean(last["by_recency"]), last["train_nll"], rtol=1e-6)
    assert 0 <= last["train_error"] <= 1


def test_clients_metrics_are_in_the_order_of_their_last_visits():
    numbers = dict.fromkeys(store.NUMBERS, 0.0) | {"nll of a": 1.0, "nll of b": 2.0, "nll of c": 3.0}
    visits = [["a"], ["b"], ["a"], ["b", "c"]]
    history = [{"clients": clients} | (numbers if k != 1 else {}) for k, clients in enumerate(visits)]
    found = _evaluated(SimpleNamespace(history=history))
    assert [row["by_recency"] for row in found] == [[1.0], [1.0, 2.0], [3.0, 2.0, 1.0]]


def test_global_vi_may_stop_early(tmp_path):
    """With an infinite tolerance the second window is the first that can be compared."""
    rule = pt.early_stopping.EarlyStopping(window=2, patience=1, tolerance=1e9)
    cell = only(tmp_path, Run("global_vi", 400, early=rule))
    assert (cell["statuses"], cell["rows"][-1]["communications"]) == (["stopped early"], 16)


class PowerCut(Exception):
    pass


@pytest.mark.parametrize("after", [0, 1, 3, 5])
def test_interrupted_anywhere_and_run_again_ends_in_the_same_table(whole, tmp_path, monkeypatch, after):
    """Also in the midst of a cell, whose run goes on from its checkpoint."""
    cells, evaluations = [], 0
    made = plan(tmp_path)
    measure = runner.PreparedProblem.metrics

    def metrics(self, posterior):
        nonlocal evaluations
        evaluations += 1
        if evaluations > 6 * after + 3:
            raise PowerCut
        return measure(self, posterior)

    with monkeypatch.context() as patch:
        patch.setattr(runner.PreparedProblem, "metrics", metrics)
        with pytest.raises(PowerCut):
            execute(made, 1, quiet)
    done = [cell for cell in made.cells() if made.done(cell)]
    assert len(done) < len(list(made.cells()))
    reports = []
    cells = execute(made, 1, lambda *report: reports.append(report))
    assert reports[-1][:2] == (len(list(made.cells())) - len(done),) * 2
    assert numbers(cells) == numbers(whole[1])
    assert not list(tmp_path.rglob("*.npz"))


def test_a_truncated_cell_or_one_of_another_configuration_is_run_again(whole, tmp_path):
    made = plan(tmp_path)
    execute(made, 1, quiet)
    first, second, *_ = made.cells()
    text = first.path(tmp_path).read_text()
    first.path(tmp_path).write_text(text[: len(text) // 2])
    other = json.loads(second.path(tmp_path).read_text())
    second.path(tmp_path).write_text(json.dumps(other | {"digest": "another"}))
    reports = []
    cells = execute(made, 1, lambda *report: reports.append(report))
    assert reports[-1][1] == 2
    assert numbers(cells) == numbers(whole[1])
    changed = plan(tmp_path, slowness=(1.0, 3.0))
    assert all(changed.done(cell) is None for cell in changed.cells())


@pytest.mark.slow
def test_two_processes_give_the_table_of_one(whole, tmp_path):
    cells = execute(plan(tmp_path), 2, quiet)
    assert numbers(cells) == numbers(whole[1])


@pytest.fixture
def endless(tmp_path):
    """A plan, and a batch of it that lasts longer than any test may."""
    made = plan(tmp_path)
    cell = next(made.cells())
    return made, [cell._replace(run=dataclasses.replace(cell.run, method="global_vi", communications=10**8))]


def test_when_a_worker_fails_the_others_end_at_once(endless):
    made, batch = endless
    with pytest.raises(InputError, match="The seed must be a whole number, 0 or more"):
        list(runner._batches(made, [batch, [next(made.cells())._replace(seed=-1)]], 2))
    assert not multiprocessing.active_children()


def test_a_killed_worker_is_reported_and_the_others_end_at_once(endless):
    made, batch = endless

    def kill():
        while len(multiprocessing.active_children()) < 2:
            time.sleep(0.1)
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(InputError, match=r"A worker was killed.*fewer --workers"):
        list(runner._batches(made, [batch, batch], 2))
    killer.join()
    assert not multiprocessing.active_children()


def test_an_unknown_solver_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(InputError, match="There is no solver named 'euler': choose one of newton, lbfgs"):
        execute(plan(tmp_path)._replace(solver="euler"), 1, quiet)
    assert not list(tmp_path.iterdir())


def test_clients_preprocess_as_if_their_rows_were_pooled():
    """On Adult's split B, which gives small clients few of the categories."""
    experiment = experiments.load("uci").smoke_version()
    problem = experiment.problems[1]
    setting = prepare(experiment, problem)
    source = load("adult")
    train = [source.train.rows(rows) for rows in divide(problem, source, experiment.quick.rows).clients]
    together = federated([_pooled(train)])
    for shard, size, frame in zip(setting.clients.shards, setting.clients.sizes, train, strict=True):
        np.testing.assert_allclose(shard.data.x[:size], together.encode(frame).x, rtol=0, atol=1e-9)
    np.testing.assert_allclose(setting.test.x, together.encode(source.test).x, rtol=0, atol=1e-9)


def _pooled(frames):
    columns = {name: np.concatenate([frame.columns[name] for frame in frames]) for name in frames[0].columns}
    return pt.datasets.Frame.build(columns, np.concatenate([frame.y for frame in frames]), frames[0].levels)


def test_the_simulated_clock_follows_rows_and_slowness():
    setting = prepare(*_uci("adult B"))
    sizes = np.array(setting.clients.sizes)
    np.testing.assert_allclose(1 / np.array(setting.speeds), sizes / sizes.mean() * np.tile([1, 2], 5))


def _uci(name):
    experiment = experiments.load("uci").smoke_version()
    return experiment, next(problem for problem in experiment.problems if problem.name == name)


def test_adult_is_divided_as_in_the_papers_table():
    """`tab:uci_splits`; Bank and Credit, which are not bundled, are in the slow tests."""
    experiment, source = experiments.load("uci"), load("adult")
    for name, small, large in (("adult A", (3907, 0.240), (3907, 0.240)), ("adult B", (1172, 0.959), (6642, 0.111))):
        problem = next(problem for problem in experiment.problems if problem.name == name)
        train = divide(problem, source, None).clients
        assert [len(rows) for rows in train] == [small[0]] * 5 + [large[0]] * 5
        positive = [source.y[rows].mean() for rows in train]
        np.testing.assert_allclose(positive[:5], small[1], atol=0.0005)
        np.testing.assert_allclose(positive[5:], large[1], atol=0.006)


@pytest.mark.parametrize("method", ["sequential", "global_vi", "bcm_split"])
def test_messages_of_n_and_of_2n_rows_are_the_same_size(method):
    """What leaves a client is a change of natural parameters and scalars, and in round 0 sums."""
    made = synthetic_frames(rows=400)
    sizes = []
    for copies in (1, 2):
        frames = [_pooled([frames.train] * copies) for frames in made.values()]
        summaries = [summarise(frame).to_dict() for frame in frames]
        tables = [federated(frames).encode(frame) for frame in frames]
        parts = pt.federate(tables)
        engine = LocalEngine(parts)
        chosen = pt.methods.named(method)
        prior = pt.MeanFieldGaussian.standard_normal(tables[0].x.shape[1])
        state = init(prior, len(parts), aggregation=chosen.aggregation)
        _, event = step(chosen, pt.LogisticRegression(), engine, state)
        leaves = [leaf for reply in event.replies.values() for leaf in jax.tree.leaves(reply)]
        sizes.append(([leaf.shape for leaf in leaves], _count(summaries)))
    assert sizes[0] == sizes[1]


def _count(contents):
    """How many numbers and texts a message of lists and dictionaries holds."""
    if isinstance(contents, dict):
        return sum(map(_count, contents.values()))
    return sum(map(_count, contents)) if isinstance(contents, list) else 1


def test_solvers_are_made_from_their_settings():
    adam = solver(experiments.load("mortality"), "authors")
    assert (adam.learning_rate, adam.batch_size) == (0.001, 128)
    assert isinstance(solver(experiments.load("uci"), "newton"), pt.Newton)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"solvers": {"newton": {"kind": "newton", "steps": 3}}}, "The solver newton has an invalid setting"),
        ({"solvers": {"newton": {"kind": "euler"}}}, "There is no kind of solver named 'euler'"),
    ],
)
def test_invalid_solver_settings_are_refused(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        execute(plan(tmp_path, **changes), 1, quiet)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"kind": "by_moon"}, "There is no kind of split named 'by_moon': choose one of given, beta_kappa"),
        ({"kind": "beta_kappa", "gamma": 1}, "The split of adult A has an invalid setting"),
    ],
)
def test_invalid_split_settings_are_refused(split, message):
    experiment, problem = _uci("adult A")
    with pytest.raises(InputError, match=message):
        prepare(experiment, dataclasses.replace(problem, split=split))


def test_results_of_other_data_are_not_reused(tmp_path):
    setting = prepare(*_uci("adult A"))
    other = setting._replace(test=pt.Table(setting.test.x, 1 - setting.test.y))
    digests = [fingerprint(setting), fingerprint(other), fingerprint(prepare(*_uci("adult A")))]
    assert digests[0] == digests[2] != digests[1]
    made = plan(tmp_path)
    first = next(made.cells())
    assert made.digests(first) != made._replace(fingerprints={first.problem.name: digests[0]}).digests(first)


def test_a_table_of_clients_has_rows_and_proportions():
    setting = prepare(*_uci("adult A"))
    rows = sizes_and_labels(setting)
    assert [row["rows"] for row in rows] == [100] * 10
    assert all(0.1 < row["positive"] < 0.4 for row in rows)
    assert [row["labels"] for row in rows] == [2] * 10


def _images(name, **changes):
    experiment = experiments.load(f"mnist-{name}").smoke_version()
    return experiment, dataclasses.replace(experiment.problems[0], **changes)


def test_images_are_used_as_they_are():
    setting = prepare(*_images("homogeneous"))
    data = pt.datasets.digits()
    np.testing.assert_array_equal(setting.test.x, data.test.x.astype(np.float32))
    assert setting.model.widths == (64, 20, 10)
    assert {leaf.dtype for leaf in jax.tree.leaves(setting.prior)} == {np.dtype(np.float32)}
    rows = np.concatenate(
        [shard.data.x[:n] for shard, n in zip(setting.clients.shards, setting.clients.sizes, strict=True)]
    )
    assert sorted(map(bytes, rows)) == sorted(map(bytes, data.train.x[:1000].astype(np.float32)))


def test_clients_with_shards_have_few_labels():
    """A shard has rows of one label."""
    alike = sizes_and_labels(prepare(*_images("homogeneous")))
    unlike = sizes_and_labels(prepare(*_images("inhomogeneous")))
    assert [row["rows"] for row in alike] == [100] * 10
    assert sum(row["rows"] for row in unlike) == 1000
    assert all(row["labels"] >= 9 for row in alike)
    assert all(row["labels"] <= 2 for row in unlike)
    assert not any("positive" in row for row in alike)


def test_images_are_clustered_by_their_pixels():
    _, problem = _images("homogeneous", split={"kind": "k_means", "clients": 3})
    x = load("digits").data.train.x
    clusters = divide(problem, load("digits"), 300).clients
    assert sum(map(len, clusters)) == 300
    within = sum(((x[rows] - x[rows].mean(axis=0)) ** 2).sum() for rows in clusters)
    # three clusters of digits leave about four fifths of the squared distances
    assert within < 0.9 * ((x[:300] - x[:300].mean(axis=0)) ** 2).sum()


def test_a_logistic_regression_on_a_table_has_an_intercept():
    experiment, problem = _images("homogeneous", model="logistic")
    setting = prepare(experiment, problem)
    assert setting.test.x.shape[1] == 65
    assert (setting.test.x[:, 0] == 1).all()


def test_a_networks_expectation_has_the_problems_samples():
    assert prepare(*_images("homogeneous", samples=3)).model.expectation.samples == 3


@pytest.mark.parametrize(("rows", "validation", "used"), [(0, 0, 1437), (500, 0, 500), (500, 100, 500), (0, 437, 1000)])
def test_training_rows_are_random_and_disjoint_from_validation_rows(rows, validation, used):
    _, problem = _images("homogeneous", rows=rows, validation=validation)
    source = load("digits")
    division = divide(problem, source, None)
    chosen = np.concatenate(division.clients)
    assert len(np.unique(chosen)) == len(chosen) == used
    if rows or validation:
        assert set(chosen) == set(np.random.default_rng(0).permutation(1437)[:used])
    if not validation:
        assert division.held_out is None
        return
    assert len(np.unique(division.held_out)) == validation
    assert not set(chosen) & set(division.held_out)
    experiment, _ = _images("homogeneous")
    setting = prepare(dataclasses.replace(experiment, smoke=False), problem)
    np.testing.assert_array_equal(setting.test.y, source.y[division.held_out])


def test_owners_keep_what_is_chosen_of_their_rows():
    experiment = experiments.load("heart").smoke_version()
    source = load("made up")
    problem = dataclasses.replace(experiment.problems[0], rows=200, validation=50)
    division = divide(problem, source, None)
    assert sum(map(len, division.clients)) == 200
    for rows, owner in zip(division.clients, source.owners.values(), strict=True):
        assert set(rows) <= set(owner)
    assert list(division.names) == list(source.owners)


@pytest.mark.parametrize(("rows", "validation"), [(1438, 0), (1400, 38), (0, 1437), (-1, 0), (0, -1)])
def test_asking_for_more_rows_than_exist_is_refused(rows, validation):
    _, problem = _images("homogeneous", rows=rows, validation=validation)
    with pytest.raises(InputError, match="ask for at most 1437 together"):
        divide(problem, load("digits"), None)


def test_runs_of_one_method_have_names_solvers_and_files_of_their_own(tmp_path):
    runs = (
        Run("sequential", 4),
        Run("sequential", 4, name="sequential, ρ = 0.5", solver="lbfgs", settings={"damping": 0.5}),
        Run("alone", 4, name="each on its own"),
    )
    made = plan(tmp_path)._replace(experiment=dataclasses.replace(plan(tmp_path).experiment, runs=runs, seeds=1))
    assert [cell.solver for cell in made.cells()] == ["newton", "lbfgs", "newton"]
    assert [cell.solver for cell in made._replace(solver="lbfgs").cells()] == ["lbfgs"] * 3
    results = Results(execute(made, 1, quiet))
    assert results.runs == ["sequential", "sequential, ρ = 0.5", "each on its own"]
    assert results.methods["sequential, ρ = 0.5"] == "sequential"
    assert results.setting("sequential, ρ = 0.5", "damping") == 0.5
    assert results.setting("sequential", "damping") is None
    assert (results.final("hospitals", "sequential") != results.final("hospitals", "sequential, ρ = 0.5")).all()
    assert len({cell.path(tmp_path) for cell in made.cells()}) == 3
    # clients alone count as their mean, whatever the run is called
    rows = results.of("hospitals", "each on its own")[0]["rows"]
    assert results.final("hospitals", "each on its own").tolist() == [np.mean([row["nll"] for row in rows])]


def test_a_smoke_run_limits_a_solvers_steps_to_the_smaller_limit():
    experiment = dataclasses.replace(
        experiments.load("heart").smoke_version(),
        solvers={"long": {"kind": "newton", "max_steps": 500}, "short": {"kind": "newton", "max_steps": 3}},
    )
    assert [solver(experiment, name).max_steps for name in ("long", "short")] == [20, 3]


def test_a_networks_runs_are_separate_batches_except_in_smoke_runs(tmp_path):
    whole = Plan(experiments.load("mnist-homogeneous"), tmp_path)
    assert [len(batch) for batch in whole.batches()] == [1] * len(list(whole.cells()))
    quick = Plan(whole.experiment.smoke_version(), tmp_path)
    assert [len(batch) for batch in quick.batches()] == [len(quick.experiment.runs)] * quick.experiment.seeds
    tables = Plan(experiments.load("heart"), tmp_path)
    assert [len(batch) for batch in tables.batches()] == [len(tables.experiment.runs)] * tables.experiment.seeds
