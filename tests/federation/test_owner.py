"""A client defends its owner: small cells, a second encoding, too many visits, and posteriors that pry are refused."""

import dataclasses
import stat

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from partita.cli import app
from partita.data.disclosure import Limits
from partita.errors import DiskError, InputError
from partita.federation import config
from partita.federation.beginning import beginning
from partita.federation.client import Client
from partita.federation.guard import Guard, agreed_visits
from partita.federation.guarded import Owner, guarded, log_of
from partita.federation.loop import Loop
from partita.federation.sent import SentLog, in_words
from partita.federation.serve import serve
from partita.io.wire import Message, pack, unpack
from support.clinic_files import COLUMNS, TOML, clinic, write

FIT = """
name = "clinics"
clients = ["east", "north"]

[fit]
formula = "{formula}"
family = "bernoulli"

[run]
assemble = 5
"""


def asked(formula="ill ~ age + pain"):
    return config.read(FIT.format(formula=formula).encode(), "federation.toml")


def answers(about, path, limits):
    """What a client sends in every stage, of which all agree with it."""
    scheme, sent = beginning(about), []
    own = scheme.read(path, "east")
    while not scheme.complete:
        sent.append(scheme.released(own, limits))
        scheme = scheme.taken([sent[-1]])
    scheme.released(own, limits)
    return sent


GAUSSIAN = {"family": "gaussian"}
CELLS = {
    "level": ("ill ~ age + pain", {}, lambda k, few: {"pain": "awful" if k < few else "none"}, "'pain'"),
    "label": (
        "ill ~ age",
        {"family": "multinomial", "levels": ("no", "yes", "maybe")},
        lambda k, few: {"ill": "maybe" if k < few else ("no", "yes")[k % 2]},
        "'ill'",
    ),
    "two values": ("pressure ~ age", GAUSSIAN, lambda k, few: {"age": 70 if k < few else 60}, "'age'"),
    "interaction": (
        "pressure ~ pain:site",
        GAUSSIAN,
        lambda k, few: {"pain": ("none", "much")[k < 10], "site": ("left", "right")[k % 2 if k > 9 else k < few]},
        "site",
    ),
    "what an interaction leaves of a level": (
        "pressure ~ pain*site",
        GAUSSIAN,
        lambda k, few: {"pain": ("none", "much")[k < 20], "site": ("left", "right")[k < 20 - few or k > 30]},
        "'pain:site'",
    ),
    "what a product leaves of two values": (
        "pressure ~ age + ill + I(age * ill)",
        GAUSSIAN,
        lambda k, few: {"age": int(k < 20), "ill": int(k < 20 - few or k > 30)},
        "'I(age * ill)'",
    ),
}
"""Columns of forty rows in which few have a cell of their own, with a formula and what is said of it."""


def rows(changed=lambda k: {}):
    """Forty rows of a clinic, some columns of which are changed, by the row's place."""
    return [
        tuple(changed(k).get(column, value) for column, value in zip(COLUMNS, row, strict=True))
        for k, row in enumerate(clinic(0, 40))
    ]


@pytest.mark.parametrize("case", CELLS)
def test_a_small_cell_stays_with_its_owner(case, tmp_path):
    formula, settings, changed, told = CELLS[case]
    about, path = asked(formula), tmp_path / "east.csv"
    about = dataclasses.replace(about, fit=dataclasses.replace(about.fit, **settings))
    write(path, rows(lambda k: changed(k, 5)))
    answers(about, path, Limits())
    write(path, rows(lambda k: changed(k, 4)))
    with pytest.raises(InputError) as caught:
        answers(about, path, Limits())
    assert told in str(caught.value)
    assert "fewer than 5 rows" in caught.value.public
    assert "awful" not in caught.value.public
    answers(about, path, Limits(1, 1))


def test_few_rows_stay_with_their_owner(tmp_path):
    write(tmp_path / "east.csv", clinic(0, 9))
    with pytest.raises(InputError, match="fewer than 10 rows"):
        answers(asked("ill ~ age"), tmp_path / "east.csv", Limits(cell=1))
    for text in (TOML, FIT.format(formula="ill ~ age")):
        client = Client("east", config.read(text.encode(), "federation.toml"), tmp_path / "east.csv")
        with pytest.raises(InputError, match="fewer than 10 rows"):
            client.check()


def test_few_values_are_told_apart_by_their_sums(tmp_path):
    """Of three values, a number, a sum and a sum of squares tell how many rows have each; of four they do not."""
    about = asked("pressure ~ age")
    about = dataclasses.replace(about, fit=dataclasses.replace(about.fit, **GAUSSIAN))
    for values, fits in (([1, 2, 3], False), ([1, 2, 3, 4], True)):
        ages = [values[-1], *(values[k % (len(values) - 1)] for k in range(39))]
        write(tmp_path / "east.csv", rows(lambda k, ages=ages: {"age": ages[k]}))
        if fits:
            answers(about, tmp_path / "east.csv", Limits())
        else:
            with pytest.raises(InputError, match="'age'"):
                answers(about, tmp_path / "east.csv", Limits())


def test_small_counts_in_bins_are_merged_with_their_neighbours(tmp_path):
    """None but 0 is left below the limit, all rows are counted, and quantiles stay where they were."""
    about, path = asked("ill ~ bs(age, df=5)"), tmp_path / "east.csv"
    write(path, clinic(0, 300))
    loose, tight = (answers(about, path, limits)[1]["bs(age, df=5)"] for limits in (Limits(1, 1), Limits()))
    assert sum(loose) == sum(tight) == 300
    assert min(filter(None, loose)) < 5 <= min(filter(None, tight))
    places = [np.repeat(np.arange(80), counts) for counts in (loose, tight)]
    quantiles = [np.quantile(each, [0.25, 0.5, 0.75]) for each in places]
    np.testing.assert_allclose(*quantiles, atol=2.0)  # bins of a tenth of an sd


def test_a_limit_that_is_none_is_refused():
    for wrong in (0, -1, 2.5, "5"):
        with pytest.raises(InputError, match="whole number"):
            Limits(cell=wrong)


def kept(folder, about, anew=False):
    write(folder / "east.csv", clinic(0))
    return guarded(folder, about, "east", folder / "east.csv", Owner(Limits(1, 1), anew=anew))


class Recording:
    """A client's end that keeps what it was asked."""

    def __init__(self, end):
        self.end, self.asked, self.said = end, [], []

    def handle(self, message):
        self.asked.append(unpack(pack(message)))
        self.said.append(self.end.handle(message))
        return self.said[-1]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A federation of two, one of them guarded, and what that one was asked."""
    folder, about = tmp_path_factory.mktemp("run"), asked()
    end = Recording(kept(folder, about))
    write(folder / "north.csv", clinic(1))
    serve(folder, about, Loop({"east": end, "north": Client("north", about, folder / "north.csv")}))
    return folder, about, end


def reason(answer):
    assert answer.header["kind"] == "error", answer.header
    return answer.header["reason"]


def test_an_honest_run_is_answered_counted_and_logged(run):
    folder, about, end = run
    kinds = [answer.header["kind"] for answer in end.said]
    assert "error" not in kinds
    answered = Guard(about, folder / "answered-east.json").answered
    assert answered.visits == len(
        {message.header["task"] for message in end.asked if message.header["kind"] == "update"}
    )
    assert 0 < answered.visits <= agreed_visits(about)
    lines = log_of(folder / "east.csv", "east").read_text().splitlines()
    assert len(lines) == len(kinds)
    assert "30 rows used, 0 left out" in lines[0]
    assert "levels of 'pain' ('much', 'none', 'some')" in lines[0]
    assert "the change of its factor" in lines[-1] or "receipt" in lines[-1] or "log-likelihood" in lines[-1]
    assert "to clinics at 127.0.0.1:9092" in lines[0]
    for path in (log_of(folder / "east.csv", "east"), folder / "answered-east.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def again(run, folder):
    """The same client after a restart, with the account of what it has answered."""
    before, about, _ = run
    (folder / "answered-east.json").write_text((before / "answered-east.json").read_text())
    return kept(folder, about)


def update(run):
    return [message for message in run[2].asked if message.header["kind"] == "update"][-1]


def test_another_encoding_than_the_first_is_refused(run, tmp_path):
    client, task = again(run, tmp_path), update(run)
    other = unpack(pack(task)).header["agreed"]
    other["design"]["mean"][1] += 1.0
    assert "another encoding" in reason(client.handle(task._replace(header=task.header | {"agreed": other})))
    hello = next(message for message in run[2].asked if message.header["kind"] == "hello")
    assert client.handle(hello).header["kind"] == "hello"  # as before
    pried = unpack(pack(Message(hello.header | {"agreed": other}, {})))
    assert "sends no other sums" in reason(client.handle(pried))
    client = kept(tmp_path, run[1], anew=True)
    assert client.handle(task).header["kind"] == "update"


@pytest.mark.parametrize(("clients", "times"), [(2, 2), (9, 3)])
def test_sums_are_told_to_so_many_stages_and_no_more(clients, times, tmp_path):
    """A server could shift bins a little each time, and tell from the differences who is where."""
    about = asked("ill ~ bs(age, df=4)")
    about = dataclasses.replace(about, clients=("east", *(f"site {k}" for k in range(1, clients))))
    client = kept(tmp_path, about)
    first = client.handle(Message({"kind": "hello", "task": "t", "digest": about.digest, "agreed": {}}, {}))
    scheme = beginning(about).taken([first.header["answer"]])
    told = []
    for k in range(40):
        agreed = scheme.to_dict()
        agreed["design"]["summary"]["columns"][0]["mean"] += 1e-6 * k
        agreed["design"]["summary"]["columns"][0]["rest"] = 0.0
        about_it = {"kind": "hello", "task": f"{k}", "digest": about.digest, "agreed": agreed}
        told.append(client.handle(Message(about_it, {})).header["kind"])
    assert told.count("hello") == times
    assert told[-1] == "error"


def test_visits_beyond_those_agreed_are_refused(run, tmp_path):
    client, task = again(run, tmp_path), update(run)
    client.guard.visits = client.guard.answered.visits
    assert client.handle(task).header["kind"] == "update"  # the same again tells nothing
    new = unpack(pack(task._replace(header=task.header | {"seed": 7})))
    assert "as many as were agreed on" in reason(client.handle(new))
    client.guard.visits += 1
    assert client.handle(new).header["kind"] == "update"


def test_a_posterior_that_is_much_tighter_than_the_runs_is_refused(run, tmp_path):
    """At a point it would tell the likelihood of all rows there."""
    client, task = again(run, tmp_path), update(run)
    tight = {name: array * (1e9 if name.startswith("q") else 1) for name, array in task.arrays.items()}
    answer = client.handle(unpack(pack(task._replace(arrays=tight))))
    assert "much tighter" in reason(answer)
    assert not answer.arrays
    share = unpack(pack(task._replace(arrays=tight, header=task.header | {"share": 1e-12})))
    assert "much tighter" in reason(client.handle(share))
    ell = [message for message in run[2].asked if message.header["kind"] in ("ell", "estimate")]
    for question in ell[:1]:
        pried = {name: array * (1e9 if name.startswith("q") else 1) for name, array in question.arrays.items()}
        assert "much tighter" in reason(client.handle(unpack(pack(question._replace(arrays=pried)))))


def test_nothing_leaves_that_cannot_be_logged(run, tmp_path):
    client = again(run, tmp_path)
    client.log = SentLog(tmp_path / "missing" / "log", "server")
    with pytest.raises(DiskError, match="missing"):
        client.handle(update(run))
    client.guard.path.write_text("{")
    with pytest.raises(InputError, match="--anew"):
        Guard(run[1], client.guard.path)


def test_the_log_is_bounded_and_plain_and_loses_nothing(tmp_path, monkeypatch):
    """A server that asks for nonsense, or for the same again, does not drive out what was told before."""
    monkeypatch.setattr("partita.federation.sent._LARGEST", 1000)
    monkeypatch.setattr("partita.federation.sent._MOST_EMPTY", 20)
    log = SentLog(tmp_path / "log", "\x1b[2Jserver")
    told = [Message({"kind": "update"}, {".x": np.full(3, float(k))}) for k in range(9)]
    for k in range(90):
        log.add(told[k % 9])
        log.add(Message({"kind": "error", "reason": f"\x1b[31mno\n {k}"}, {}))
    text = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "\x1b" not in text
    assert text.count("3 numbers") == 9
    assert text.count("31mno") == 20


@pytest.mark.parametrize("kind", ["hello", "update", "ell", "agreed"])
def test_nothing_that_a_server_sends_ends_a_client(kind, tmp_path):
    """Neither nonsense nor tables in tables, as deep as they can be read."""
    about = asked("ill ~ age")
    client = kept(tmp_path, about)
    deep = {}
    for _ in range(400):
        deep = {"a": deep}
    for agreed in (None, 3, "x", [], {"rows": 1}, deep):
        for share in (None, 1e-400, 10**400, "1", deep):
            header = {"kind": kind, "task": deep, "digest": about.digest, "agreed": agreed, "share": share}
            answer = client.handle(Message(header, {}))
            assert answer.header["kind"] in ("error", "ack") or (kind == "hello" and not agreed)


def test_a_preview_says_what_would_leave_and_nothing_does(tmp_path):
    (tmp_path / "federation.toml").write_text(FIT.format(formula="ill ~ bs(age, df=4) + pain"))
    write(tmp_path / "east.csv", clinic(0, 100))
    before = jax.config.read("jax_enable_x64")
    options = ["client", tmp_path, "--name", "east", "--data", tmp_path / "east.csv", "--preview"]
    done = CliRunner().invoke(app, [str(option) for option in options], catch_exceptions=False)
    jax.config.update("jax_enable_x64", before)
    assert done.exit_code == 0
    for words in ("100 rows used", "in 80 bins", "levels of 'pain'", "the change of its factor", "Nothing has left"):
        assert words in done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["east.csv", "federation.toml"]


def test_every_kind_of_message_can_be_told_in_words():
    for kind in ("ack", "unbound", "error", "ell", "estimate", "update", "whatever"):
        assert in_words(Message({"kind": kind}, {}))
