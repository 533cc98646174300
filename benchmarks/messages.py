"""The overhead of a message on each engine, and the server's time to aggregate an answer.

A message is a task and its answer: the time from `submit` to the answer that `next` hands out. The client is the same
everywhere: a federation of one, with two rows, whose network has as many parameters as the wanted answer needs and
whose solver takes no step. Its remaining work is timed separately in this process and subtracted. An answer has two
numbers of double precision for every parameter of a mean-field Gaussian; its task, with posterior and factor, twice
that.

- in process: `LocalEngine`.
- Dask: a cluster of one worker, a process of its own.
- Flower: its protocol over TLS with keys on loopback, to one client as `partita client` runs it.
- mailbox: a local folder, to one client likewise.
- stock Flower: its own programs with an app that hands back what comes, of as many bytes, without TLS
  and keys; few messages, since each takes seconds.

The first message, which compiles, is reported separately; later messages are timed one by one.

The server's part is a run with ten clients that answer immediately: reading and checking answers, the product, and
the ledger on disk. Its time is that of a step, divided by the answers in it.

    python benchmarks/messages.py [--engines process dask flower mailbox stock] [--sizes 1e3 1.6e6 50e6] [--repeats 50]
"""

import argparse
import contextlib
import importlib.metadata
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

import partita as pt
from partita.engines import Answer, LocalEngine
from partita.engines.remote import Delivery, RemoteEngine, Transport
from partita.families.factor import Factor
from partita.federation import Ledger, config
from partita.io.wire import Message, flatten, pack, unpack
from partita.server.admission import Admission
from partita.server.monitor import Monitor
from partita.server.rules import Rules
from partita.server.state import init
from partita.server.step import dispatch

ENGINES = {"process": "in process", "dask": "Dask", "flower": "Flower", "mailbox": "mailbox", "stock": "stock Flower"}
SIZES = (1e3, 1.6e6, 50e6)
"""Bytes of an answer's arrays."""
LARGE_BYTES, REPEATS_DIVISOR = 10e6, 4
"""Messages of at least this size are repeated less often, by this factor."""
MESSAGE_TIMEOUT = 300.0
"""Seconds after which a message counts as lost."""

NUMBERS, CLIENTS, ROUNDS = (200_000, 400_000), 10, 8
"""Natural parameters of an answer: 200,000, and those of a mean-field Gaussian over as many weights."""
TARGET_SECONDS = 10e-3
"""Target in seconds for aggregating an answer of 200,000 natural parameters."""
LEDGERS = ("none", "not durable", "durable")
"""No ledger, one that is not flushed to disk at once, and one that is flushed after every answer."""
BOUNDS = Admission(change=1e9, dominance=1e9, prominence=1e9, deficit=0.5)
"""Bounds that enable every check and that every answer passes."""

FEDERATION = """name = "messages"
clients = ["client"]
data = {{ response = "y", numbers = ["x"] }}
model = {{ kind = "classifier", hidden = [{hidden}] }}
solver = {{ kind = "adam", max_steps = 0 }}
server = {{ address = "{address}" }}
disclosure = {{ rows = 1, cell = 1 }}
"""
ROWS = ((-1.0, 0.0), (1.0, 1.0))
"""x and y."""


def federation_text(size, address="127.0.0.1:9092"):
    """A federation whose answers have about `size` bytes: a network of two inputs, hidden units and two classes."""
    return FEDERATION.format(hidden=max(1, round((size / 16 - 2) / 5)), address=address)


def one_client(size):
    """The federation's method, model, prior and rows, and the first task for its client."""
    federation = config.read(federation_text(size).encode(), "the benchmark's federation")
    x, y = np.array(ROWS).T
    parts = pt.federate([pt.Table(np.column_stack([np.ones(2), x]), y)], names=federation.clients)
    model, method = federation.built_model(2), federation.built_method()
    prior = federation.built_prior(model, 2)
    return method, model, prior, parts, first_task(method, prior, federation.clients)


def first_task(method, prior, names):
    return dispatch(method, init(prior, names), np.zeros(len(names), bool)).in_flight[0]


def message_seconds(engine, method, model, prior, task, repeats):
    """The time of each message, the first included."""
    seconds = []
    engine.bind(method.recipe(model), prior)
    for index in range(1 + repeats):
        start = time.perf_counter()
        engine.submit(task._replace(id=f"message {index}"))
        answer = engine.next(MESSAGE_TIMEOUT)
        if not isinstance(answer, Answer):
            raise SystemExit(f"A message was lost: {answer}.")
        jax.block_until_ready(answer.reply)
        seconds.append(time.perf_counter() - start)
    return seconds


def in_process(size, repeats):
    method, model, prior, parts, task = one_client(size)
    engine = LocalEngine(parts)
    with engine.running():
        return message_seconds(engine, method, model, prior, task, repeats)


def over_dask(size, repeats):
    from distributed import Client, LocalCluster

    from partita.engines.dask import DaskEngine

    method, model, prior, parts, task = one_client(size)
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        return message_seconds(DaskEngine(client, parts), method, model, prior, task, repeats)


def over_flower(size, repeats):
    """With TLS and keys on loopback."""
    return remote(size, repeats, f"127.0.0.1:{free_port()}")


def over_mailbox(size, repeats):
    """Through a folder of this machine."""
    with tempfile.TemporaryDirectory() as shared:
        return remote(size, repeats, f"folder:{shared}")


def remote(size, repeats, address):
    """The server's side here, and a client as `partita client` runs it."""
    from partita.federation.enrolment import Attended, Enrolment
    from partita.federation.initialise import issue_credentials
    from partita.federation.links import listen

    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder = Path(place)
        rows = folder / "rows.csv"
        (folder / config.CONFIG_FILE).write_text(federation_text(size, address))
        issue_credentials(folder)
        rows.write_text("x,y\n" + "".join(f"{x},{y}\n" for x, y in ROWS))
        command = [sys.executable, "-m", "partita", "client", str(folder / "clients" / "client"), "--name", "client"]
        command += ["--data", str(rows), "--visits", "10000"]
        log = stack.enter_context((folder / "client.txt").open("w"))
        client = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
        stack.callback(client.terminate)
        federation = config.load(folder)
        ledger = Ledger(folder / "ledger")
        link = stack.enter_context(listen(folder, federation, ledger))
        enrolment = Enrolment(federation, link, ledger)
        scheme = enrolment.assemble()
        model, method, prior = scheme.model(), scheme.method(), scheme.prior()
        engine = RemoteEngine(Attended(enrolment, newcomers=False), enrolment.rows)
        return message_seconds(engine, method, model, prior, first_task(method, prior, federation.clients), repeats)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def work_seconds(size, repeats):
    """The time of the client's compiled update alone, in this process."""
    method, model, prior, parts, task = one_client(size)
    engine, seconds = LocalEngine(parts), []
    engine.bind(method.recipe(model), prior)
    with engine.running():
        for _ in range(1 + repeats):
            start = time.perf_counter()
            jax.block_until_ready(engine.answer(task))
            seconds.append(time.perf_counter() - start)
    return seconds[1:]


STOCK_APP = """
[project]
name = "echo"
version = "1.0"
[tool.flwr.app]
publisher = "benchmark"
[tool.flwr.app.components]
serverapp = "echo:server"
clientapp = "echo:client"
[tool.flwr.app.config]
out = ""
size = 0
count = 0
"""
STOCK_CODE = """
import json, pathlib, time
import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.train()
def answer(message, context):
    return Message(RecordDict(message.content), reply_to=message)

@server.main()
def main(grid, context):
    about, seconds = context.run_config, []
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.1)
    for _ in range(1 + about["count"]):
        content = RecordDict({"a": ArrayRecord({"x": Array(np.zeros(about["size"] // 8))})})
        start, left = time.perf_counter(), []
        asked = list(grid.push_messages([Message(content, nodes[0], "train", ttl=600.0)]))
        while not left:
            left = list(grid.pull_messages(asked))
            time.sleep(0.005)
        seconds.append(time.perf_counter() - start)
    pathlib.Path(about["out"]).write_text(json.dumps(seconds))
"""
STOCK_MESSAGES, STOCK_TIMEOUT = 4, 120.0
"""Messages of stock Flower, and seconds for all of them."""


def stock(size, repeats):
    """Flower's own server and client programs on loopback, without encryption and keys."""
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder, out = Path(place), Path(place) / "seconds.json"
        (folder / "app").mkdir()
        (folder / "app" / "pyproject.toml").write_text(STOCK_APP)
        (folder / "app" / "echo.py").write_text(STOCK_CODE)
        link, own = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        (folder / "config.toml").write_text(f'[superlink.here]\naddress = "{link}"\ninsecure = true\n')
        found = next(file for file in importlib.metadata.files("flwr") if file.name == "flower-superlink")
        programs = str(Path(found.locate()).resolve().parent)
        quiet = {"FLWR_HOME": place, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        quiet |= {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05"}
        environment = os.environ | quiet | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        log = stack.enter_context((folder / "log.txt").open("w"))
        many = min(repeats, STOCK_MESSAGES)
        given = f'out="{out}" size={int(size)} count={many}'
        commands = (
            ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", link.rpartition(":")[2]],
            ["flower-supernode", "--insecure", "--superlink", link, "--port", own.rpartition(":")[2]],
            ["flwr", "run", str(folder / "app"), "here", "--run-config", given],
        )
        for command in commands:
            started = subprocess.Popen(
                [f"{programs}/{command[0]}", *command[1:]],
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
            stack.callback(stop_group, started)
            time.sleep(5.0)
        until = time.monotonic() + STOCK_TIMEOUT
        while not out.exists() or not out.read_text():
            if time.monotonic() > until:
                print((folder / "log.txt").read_text()[-2000:], file=sys.stderr)
                raise SystemExit("Stock Flower has not ended: leave it out of --engines.")
            time.sleep(0.1)
        return json.loads(out.read_text())


def stop_group(process):
    """Ends a program and those that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


MEASURES = {"process": in_process, "dask": over_dask, "flower": over_flower, "mailbox": over_mailbox, "stock": stock}


def messages(engines, sizes, repeats):
    """The cost of a message by engine and size."""
    found = []
    for size in sizes:
        task, fewer = one_client(size)[-1], max(3, repeats // REPEATS_DIVISOR)
        often = fewer if size >= LARGE_BYTES else repeats
        seconds = {}
        for engine in engines:
            print(f"{ENGINES[engine]}, {size:,.0f} bytes", file=sys.stderr)
            seconds[engine] = MEASURES[engine](size, often)
        work = quartiles(work_seconds(size, often))
        for engine, (first, *others) in seconds.items():
            taken = quartiles(others)
            found.append(
                {
                    "engine": engine,
                    "parameters": task.prior.size() // 2,
                    "answer_bytes": Message({}, flatten(task.factor)).size,
                    "messages": len(others),
                    "message_seconds": taken,
                    "work_seconds": work,
                    "overhead_seconds": taken["median"] - work["median"],
                    "first_seconds": first,
                }
            )
    return found


class ImmediateClients(Transport):
    """Clients that answer immediately, each with a precomputed change of its factor."""

    def __init__(self, prior, names):
        size, self._inbox = prior.size() // 2, []
        generator = np.random.default_rng(0)
        self._changes = {}
        for name in names:
            mean, sd = generator.normal(size=size), 30 + generator.random(size)
            natural = pt.MeanFieldGaussian.from_mean_sd(mean, sd)
            self._changes[name] = pack(Message({}, flatten(Factor(natural, jax.numpy.zeros(())))))

    def post(self, name, message):
        info = {"ell": 0.0, "ell_variance": 0.0, "free_energy": 0.0, "residual": 1.0}
        info |= {"steps": 1, "outcome": 1, "skipped": 0, "finite": True}
        header = {"kind": "update", "task": message.header["task"], "version": message.header["version"], "info": info}
        self._inbox.append(Delivery(name, Message(header, unpack(self._changes[name]).arrays)))

    def poll(self, timeout):
        return self._inbox.pop(0) if self._inbox else None

    def present(self):
        return list(self._changes)

    def now(self):
        return time.monotonic()


def aggregation_seconds(numbers, method, admission, journal):
    """The server's time per answer at every step, without the first round, which compiles."""
    prior = pt.MeanFieldGaussian.standard_normal(numbers // 2)
    names = [f"client {k}" for k in range(CLIENTS)]
    engine = RemoteEngine(ImmediateClients(prior, names), dict.fromkeys(names, 1), journal)
    result = pt.run(
        method,
        pt.LogisticRegression(),
        prior,
        engine=engine,
        rules=Rules(admission=admission),
        rounds=1 + ROUNDS,
        monitor=Monitor(every=0),
        store=journal,
        requests=journal,
    )
    if result.history.refusals or result.state.answers != CLIENTS * (1 + ROUNDS):
        raise SystemExit("The server did not accept every answer.")
    steps = len(result.history) // (1 + ROUNDS)
    return np.diff(result.history["seconds"])[steps - 1 :] * steps / CLIENTS


def server(place):
    """The server's time to aggregate one answer, with and without a ledger and admission bounds."""
    schedules = {"sequential": pt.methods.sequential(), "synchronous": pt.methods.synchronous()}
    checks = {"finite": Admission(), "all": BOUNDS}
    found = []
    for numbers, schedule, ledger, check in itertools.product(NUMBERS, schedules, LEDGERS, checks):
        with tempfile.TemporaryDirectory(dir=place) as folder:
            journal = Journal() if ledger == "none" else Ledger(Path(folder) / "ledger", durable=ledger == "durable")
            seconds = quartiles(aggregation_seconds(numbers, schedules[schedule], checks[check], journal))
        found.append({"numbers": numbers, "schedule": schedule, "ledger": ledger, "checks": check, "seconds": seconds})
    return found


def quartiles(values):
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    return {"median": float(median), "low": float(low), "high": float(high)}


def show(report):
    def spread(value):
        return " ".join(f"{1e3 * value[name]:,.2f}" for name in ("median", "low", "high"))

    def grid(title, *columns):
        made = RichTable(title=title)
        for index, column in enumerate(columns):
            made.add_column(column, justify="right" if index else "left")
        return made

    console = Console()
    table = grid(
        "A message, in milliseconds: median and quartiles",
        "engine",
        "answer, bytes",
        "messages",
        "submit to answer",
        "client's work",
        "overhead",
        "the first",
    )
    for row in report["messages"]:
        table.add_row(
            ENGINES[row["engine"]],
            f"{row['answer_bytes']:,}",
            str(row["messages"]),
            spread(row["message_seconds"]),
            spread(row["work_seconds"]),
            f"{1e3 * row['overhead_seconds']:,.2f}",
            f"{1e3 * row['first_seconds']:,.0f}",
        )
    console.print(table)
    table = grid(
        f"The server's part of an answer, {CLIENTS} clients, in milliseconds",
        "schedule",
        "natural parameters",
        "ledger",
        "checks",
        "median and quartiles",
        f"under {1e3 * TARGET_SECONDS:.0f} ms",
    )
    for row in report["server"]:
        holds = "holds" if row["seconds"]["median"] < TARGET_SECONDS else "FALLS SHORT"
        verdict = holds if row["numbers"] == NUMBERS[0] else ""
        table.add_row(
            row["schedule"], f"{row['numbers']:,}", row["ledger"], row["checks"], spread(row["seconds"]), verdict
        )
    console.print(table)
    console.print(", ".join(f"{name} {version}" for name, version in report["versions"].items()), highlight=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="*", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--sizes", nargs="*", type=float, default=SIZES, help="bytes of an answer")
    parser.add_argument("--repeats", type=int, default=50, help="messages of each kind; of large ones a quarter of it")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the ledger is put: on the disk in question")
    parser.add_argument("--no-server", action="store_true", help="leave out the server's part")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    report = {
        "messages": messages(arguments.engines, arguments.sizes, arguments.repeats),
        "server": [] if arguments.no_server else server(arguments.folder),
        "versions": dict(versions()),
    }
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        show(report)


def versions():
    for name in ("partita", "jax", "distributed", "flwr"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield name, importlib.metadata.version(name)


if __name__ == "__main__":
    main()
