"""A lone attacker among ten clients of Adult: how much worse do held-out predictions become?

Every run is the real server, over a link in this process: answers are messages, read and checked as those of strangers.
With bounds on answers, without them, with the attacker left out, and with everybody honest; and what honest answers
look like to the bounds.

    python experiments/attacks/attacks.py [--json]
"""

import argparse
import collections
import functools
import json
import logging
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from partita.engines.base import EventLog
from partita.engines.endpoint import ClientEndpoint
from partita.engines.remote import Delivery, RemoteEngine, Transport
from partita.families import MeanFieldGaussian
from partita.io.wire import Message
from partita.methods import named
from partita.results.history import History
from partita.results.posterior import Posterior
from partita.server.admission import Admission, divergence, ratios
from partita.server.method import Method
from partita.server.monitor import Monitor
from partita.server.rules import Rules
from partita.server.run import run
from partita.server.state import State
from partita_experiments import config
from partita_experiments.problem import PreparedProblem, prepare, solver

MEAN, PRECISION = ".natural.precision_mean", ".natural.precision"
"""Natural parameters in an answer, by name; in a task a t comes before those of the client's factor."""


class Plan(NamedTuple):
    """A problem with a schedule and its budget in rounds."""

    experiment: str
    problem: str
    schedule: str
    settings: dict[str, Any]
    rounds: float
    attacker: int = -1


PLANS = (
    Plan("uci", "adult A", "synchronous", {"damping": 0.2}, 15),
    Plan("uci", "adult B", "synchronous", {"damping": 0.2}, 15),
    Plan("uci", "adult A", "sequential", {"order": "random"}, 4),
    Plan("uci", "adult B", "sequential", {"order": "random"}, 4),
)
HOSPITALS = (
    Plan("heart", "hospitals", "synchronous", {}, 20),
    Plan("heart", "hospitals", "sequential", {"order": "random"}, 10),
)


class Neighbours(Transport):
    """Clients in this process, on a clock of their own: each answers at once, in the order of being asked."""

    def __init__(self, ends: dict[str, Any]) -> None:
        self.ends, self.time = ends, 0.0
        self._letters: collections.deque[Delivery] = collections.deque()

    def post(self, name: str, message: Message) -> None:
        self._letters.append(Delivery(name, self.ends[name].handle(message)))

    def poll(self, timeout: float) -> Delivery | None:
        if self._letters:
            return self._letters.popleft()
        self.time += timeout
        return None

    def present(self) -> Sequence[str]:
        return list(self.ends)

    def now(self) -> float:
        return self.time


class Remembering:
    """A client's end that answers equal tasks once; without draws, an answer depends on posterior and factor alone."""

    def __init__(self, site: ClientEndpoint) -> None:
        self.site = site
        self._answers: dict[bytes, Message] = {}

    def handle(self, message: Message) -> Message:
        if message.header["kind"] != "update":
            return self.site.handle(message)
        key = b"".join(array.tobytes() for _, array in sorted(message.arrays.items()))
        if key not in self._answers:
            self._answers[key] = self.site.handle(message)
        found = self._answers[key]
        return found._replace(header=found.header | {name: message.header[name] for name in ("task", "version")})


Attack = Callable[[Message, Message], Message]
"""What is sent instead of an honest answer to a task."""


class Attacker:
    """A client's end that sends what an attack makes of its honest answers."""

    def __init__(self, end: Remembering, attack: Attack) -> None:
        self.end, self.attack = end, attack

    def handle(self, message: Message) -> Message:
        honest = self.end.handle(message)
        return self.attack(message, honest) if message.header["kind"] == "update" else honest


def altered(change: Callable[[np.ndarray], np.ndarray]) -> Attack:
    """Sends an honest answer in which every array has been changed."""
    return lambda task, honest: honest._replace(arrays={name: change(a) for name, a in honest.arrays.items()})


def leading_to(mean: float, precision: float) -> Attack:
    """Sends what leads to its honest factor with both natural parameters multiplied, however often it is asked."""

    def attack(task: Message, honest: Message) -> Message:
        wanted = {MEAN: mean, PRECISION: precision}
        changed = {name: by * (task.arrays[f"t{name}"] + honest.arrays[name]) for name, by in wanted.items()}
        arrays = {name: changed[name] - task.arrays[f"t{name}"] for name in wanted}
        return honest._replace(arrays=honest.arrays | arrays)

    return attack


def first_again(renumbered: bool) -> Attack:
    """Sends its first answer again and again: the same message, or its change under the number of the new task."""
    kept: list[Message] = []

    def attack(task: Message, honest: Message) -> Message:
        kept.append(honest)
        numbers = {key: honest.header[key] for key in ("task", "version")} if renumbered else {}
        return kept[0]._replace(header=kept[0].header | numbers)

    return attack


class Shift:
    """Honest for five answers; then pulls to one side as far as the bounds let it, as precise as all others together.

    The side is the one on which predictions lose most for a change that a mean-field posterior counts as small: the
    first eigenvector of the correlations between columns, by the attacker's own rows. The others' answers of the same
    round are not known to it, so it stays a little within the bounds.
    """

    def __init__(self, site: ClientEndpoint, bounds: Admission) -> None:
        self.bounds, self.answers, self.farthest = bounds, 0, 0.0
        weights = np.asarray(site.shard.weights)
        curvature = (np.asarray(site.shard.data.x).T * weights) @ np.asarray(site.shard.data.x)
        diagonal = np.diag(curvature)
        scale = np.where(diagonal > 0, 1 / np.sqrt(np.maximum(diagonal, 1e-12)), 0.0)  # some columns it has no rows of
        self.direction = scale * np.linalg.eigh(curvature * np.outer(scale, scale))[1][:, -1]

    def __call__(self, task: Message, honest: Message) -> Message:
        self.answers += 1
        if self.answers <= 5:
            return honest
        q, factor = (
            MeanFieldGaussian(*(jnp.asarray(task.arrays[f"{who}{name}"]) for name in ("precision_mean", "precision")))
            for who in ("q.", "t.natural.")
        )
        if self.answers == 6:
            # others' distances are not known to it, and it takes its own honest one for theirs
            self.farthest = 0.9 * self.bounds.prominence * float(divergence(q, factor, q.one(), q.one()))
        others = q / factor
        low, high = 0.0, 1e6
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self._allowed(q, factor, self._wanted(others, middle)) else (low, middle)
        change = self._wanted(others, 0.95 * low) / factor
        arrays = {MEAN: np.asarray(change.precision_mean), PRECISION: np.asarray(change.precision)}
        return honest._replace(arrays=honest.arrays | arrays)

    def _wanted(self, others: MeanFieldGaussian, length: float) -> MeanFieldGaussian:
        return MeanFieldGaussian(others.precision * (others.mean + length * self.direction), others.precision)

    def _allowed(self, q: MeanFieldGaussian, factor: MeanFieldGaussian, wanted: MeanFieldGaussian) -> bool:
        about = (q, factor, wanted / factor, q.one())
        within = divergence(*about) <= min(self.bounds.change, self.farthest)
        return bool(within and ratios(*about)[1] <= self.bounds.dominance)


def with_flipped_labels(site: ClientEndpoint) -> ClientEndpoint:
    """The same rows with every label the other one."""
    shard = eqx.tree_at(lambda shard: shard.data.y, site.shard, 1 - site.shard.data.y)
    return ClientEndpoint(site.name, site.recipe, site.prior, shard)


def attackers(end: Remembering, bounds: Admission) -> dict[str, Any]:
    """The attacker's end of the federation for each attack, by name."""
    attacks: dict[str, Attack] = {
        "NaN": altered(lambda array: array * np.nan),
        "infinite": altered(lambda array: array + np.inf),
        "wrong shape": altered(lambda array: array[..., :-1] if array.ndim else array),
        "sign of the change flipped": altered(np.negative),
        "change × 10": altered(lambda array: 10 * array),
        "precision spike × 100": leading_to(100.0, 100.0),
        "precision spike × 1000": leading_to(1000.0, 1000.0),
        "precision spike × 1000 at 0": leading_to(1.0, 1000.0),
        "first message again": first_again(renumbered=False),
        "first change again": first_again(renumbered=True),
        "sign of the mean flipped": leading_to(-1.0, 1.0),
        "shift within the bounds": Shift(end.site, bounds),
    }
    ends: dict[str, Any] = {name: Attacker(end, attack) for name, attack in attacks.items()}
    return ends | {"labels flipped": with_flipped_labels(end.site)}


class Witness(EventLog):
    """Keeps the largest of what the bounds are about that honest answers reach."""

    def __init__(self) -> None:
        self.most = {"change": 0.0, "dominance": 0.0, "prominence": 0.0, "deficit": 0.0}
        self.refused = 0
        self._before: State | None = None

    def keep(self, state: State) -> None:
        self._before = state

    def close(self, state: State, history: History, last: bool) -> None:
        before = self._before
        assert before is not None
        self.refused += len(history.rows[-1]["refused"])
        one = state.prior.one()
        for task, reply in before.arrived:
            least, _ = ratios(task.posterior, task.factor.natural, reply.delta.natural, one)
            self._note(deficit=-float(least))
        if state.answers >= len(state.names):
            for factor in state.factors:
                about = (state.posterior, factor.natural, one, one)
                nats, without = float(divergence(*about)), state.posterior / factor.natural
                others = [float(divergence(without, f.natural, one, one)) for f in state.factors if f is not factor]
                self._note(change=nats, dominance=float(ratios(*about)[1]), prominence=nats / statistics.median(others))

    def _note(self, **seen: float) -> None:
        self.most |= {name: max(self.most[name], value) for name, value in seen.items()}


class Noted(EventLog):
    """Counts what became of answers that could not be read, or that nobody waited for."""

    def __init__(self) -> None:
        self.count: collections.Counter[str] = collections.Counter()

    def note(self, name: str, event: str, text: str = "") -> None:
        self.count[name] += 1


class Bench:
    """A problem and a schedule, on which runs with and without an attacker are made."""

    def __init__(self, plan: Plan) -> None:
        experiment = config.load(plan.experiment)
        problem = next(problem for problem in experiment.problems if problem.name == plan.problem)
        self.plan, self.setting = plan, _prepared(plan.experiment, plan.problem)
        settings = {"solver": solver(experiment, problem.solver), "start": self.setting.start(0), **plan.settings}
        self.method: Method = named(plan.schedule, **settings)
        clients = self.setting.clients
        recipe = self.method.recipe(self.setting.model)
        self.ends = {
            name: Remembering(ClientEndpoint(name, recipe, self.setting.prior, shard))
            for name, shard in zip(clients.names, clients.shards, strict=True)
        }
        self.rows = dict(zip(clients.names, clients.sizes, strict=True))
        self.attacker = clients.names[plan.attacker]

    def go(self, ends: dict[str, Any], bounds: Admission, journal: EventLog | None = None) -> dict[str, Any]:
        """The held-out NLPD after a run with these clients, and how many of the attacker's answers were refused."""
        noted = Noted()
        rows = {name: self.rows[name] for name in ends}
        result = run(
            self.method,
            self.setting.model,
            self.setting.prior,
            engine=RemoteEngine(Neighbours(ends), rows, noted),
            rounds=self.plan.rounds,
            rules=Rules(deadline=1.0, quorum=0.5, admission=bounds),
            monitor=Monitor(every=0),
            store=journal,
            requests=journal,
        )
        refused = noted.count + collections.Counter(name for row in result.history for name in row["refused"])
        nlpd = self.setting.metrics(Posterior(self.setting.model, result.posterior.q))["nll"]
        return {"nlpd": nlpd, "refused": refused, "ended": result.status.value}


@functools.lru_cache
def _prepared(experiment: str, problem: str) -> PreparedProblem:
    found = config.load(experiment)
    return prepare(found, next(some for some in found.problems if some.name == problem))


def calibration(bench: Bench, bounds: Admission) -> dict[str, Any]:
    """What honest answers reach without bounds, with everybody and without anyone, and how many the bounds refuse."""
    plan, witness, refused = bench.plan, Witness(), 0
    for missing in (None, *bench.ends):
        ends = {name: end for name, end in bench.ends.items() if name != missing}
        bench.go(ends, Admission(), witness)
        refused += sum(bench.go(ends, bounds)["refused"].values())
    found = {"problem": plan.problem, "schedule": plan.schedule, **witness.most, "refused": refused}
    print(found, file=sys.stderr)
    return found


def attacked(bench: Bench, bounds: Admission) -> dict[str, Any]:
    """What every attack does to held-out predictions."""
    plan = bench.plan
    others = {name: end for name, end in bench.ends.items() if name != bench.attacker}
    honest, left_out = bench.go(bench.ends, bounds)["nlpd"], bench.go(others, bounds)["nlpd"]
    found = []
    for name in attackers(bench.ends[bench.attacker], bounds):
        row: dict[str, Any] = {"attack": name}
        for key, used in (("without", Admission()), ("with", bounds)):
            attacker = attackers(bench.ends[bench.attacker], bounds)[name]
            outcome = bench.go(bench.ends | {bench.attacker: attacker}, used)
            row |= {f"{key}_bounds": outcome["nlpd"], f"{key}_bounds_excess": outcome["nlpd"] - left_out}
            row |= {f"{key}_bounds_refused": outcome["refused"].pop(bench.attacker, 0)}
            row |= {f"{key}_bounds_honest_refused": sum(outcome["refused"].values())}
        found.append(row)
        print(f"{plan.problem}, {plan.schedule}: {row}", file=sys.stderr)
    about = {"problem": plan.problem, "schedule": plan.schedule, "rounds": plan.rounds, "attacker": bench.attacker}
    return about | {"honest": honest, "left_out": left_out, "attacks": found}


def main() -> None:
    """Runs everything and prints tables, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", choices=["adult A", "adult B", "hospitals"], help="only this one")
    parser.add_argument("--schedule", choices=["synchronous", "sequential"], help="only this one")
    parser.add_argument("--change", type=float, default=1000.0, help="the bound on the change, in nats")
    parser.add_argument("--prominence", type=float, default=7.0, help="the bound on the change beside others'")
    parser.add_argument("--json", action="store_true", help="print one object instead of tables")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)

    logging.getLogger("partita").setLevel(logging.ERROR)

    def asked(plan: Plan) -> bool:
        return arguments.problem in (None, plan.problem) and arguments.schedule in (None, plan.schedule)

    bounds = Admission(arguments.change, dominance=100.0, prominence=arguments.prominence, deficit=0.05)
    benches = [Bench(plan) for plan in PLANS if asked(plan)]
    hospitals = [Bench(plan) for plan in HOSPITALS if asked(plan)]
    results = {
        "bounds": bounds._asdict(),
        "calibration": [calibration(bench, bounds) for bench in (*benches, *hospitals)],
        "attacked": [attacked(bench, bounds) for bench in benches],
    }
    print(json.dumps(results) if arguments.json else tables(results))


def tables(results: dict[str, Any]) -> str:
    """The results as tables of Markdown."""
    lines = [
        "| honest clients | change | dominance | prominence | deficit | refused |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in results["calibration"]:
        seen = (
            f"{row['change']:.0f} | {row['dominance']:.1f} | {row['prominence']:.1f} | {max(row['deficit'], 0.0):.2g}"
        )
        lines.append(f"| {row['problem']}, {row['schedule']} | {seen} | {row['refused']} |")
    for part in results["attacked"]:
        lines += [
            "",
            f"### {part['problem']}, {part['schedule']}",
            "",
            f"Everybody honest: {part['honest']:.4f}. Without {part['attacker']}, who attacks: {part['left_out']:.4f}.",
            "",
            "| attack | NLPD without bounds | with bounds | excess without | excess with | refused | honest refused |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        for row in part["attacks"]:
            nlpd = " | ".join(f"{row[key]:.4f}" for key in ("without_bounds", "with_bounds"))
            excess = " | ".join(f"{row[key]:+.4f}" for key in ("without_bounds_excess", "with_bounds_excess"))
            refused = f"{row['with_bounds_refused']} | {row['with_bounds_honest_refused']}"
            lines.append(f"| {row['attack']} | {nlpd} | {excess} | {refused} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
