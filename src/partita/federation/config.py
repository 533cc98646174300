"""The federation's configuration, federation.toml: the same file for the server and every client."""

import dataclasses
import hashlib
import ipaddress
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from partita.data.columns import Column, Counts, Moments
from partita.data.disclosure import Limits
from partita.errors import FederationError, unknown
from partita.expectations.capabilities import Template
from partita.families import Family, FullGaussian, Gaussian, MeanFieldGaussian, NearestMeanField
from partita.io.settings import build, parse
from partita.local.solvers import named as solver_named
from partita.methods import NAMED, settings_of
from partita.methods import named as method_named
from partita.models import Model
from partita.models.named import KINDS, Likelihood
from partita.server.admission import Admission
from partita.server.method import Method
from partita.tables.spec import Settings

__all__ = [
    "CONFIG_FILE",
    "NAME",
    "Bounds",
    "Data",
    "Federation",
    "Prior",
    "Run",
    "Server",
    "host_and_port",
    "host_of",
    "load",
    "loopback",
    "read",
    "shared_folder",
]

CONFIG_FILE = "federation.toml"
_DEFAULT_SOLVER = {"kind": "newton"}
_FAMILIES: Mapping[str, type[Gaussian]] = {
    "mean-field": MeanFieldGaussian,
    "nearest-mean-field": NearestMeanField,
    "full": FullGaussian,
}
NAME = re.compile(r"\w(?:[\w.-]*\w)?")
"""Valid client names; they are also names of folders and keys."""
_FOLDER = "folder:"
"""What the address of a mailbox begins with."""
_HOST = re.compile(r"(?=.{1,64}$)[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")
"""Valid host names; a certificate's common name has at most 64 characters."""


@dataclasses.dataclass(frozen=True)
class Data:
    """Which columns a client's file must have, where there is no formula."""

    response: str
    numbers: tuple[str, ...] = ()
    """Numeric columns; missing values are imputed with the mean over all clients."""
    categories: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Categorical columns with their levels; an empty list collects the levels from clients at enrolment."""
    positive: tuple[str, ...] = ()
    """The values of a response that count as 1, where it is not numbers."""
    negative: tuple[str, ...] = ()
    """The values that count as 0; without any, the only other value that clients have."""

    @property
    def columns(self) -> dict[str, tuple[type[Column], tuple[str, ...]]]:
        """Kind and declared levels of every column."""
        numbers = dict.fromkeys(self.numbers, (Moments, ()))
        return numbers | {name: (Counts, tuple(levels)) for name, levels in self.categories.items()}


@dataclasses.dataclass(frozen=True)
class Prior:
    """N(0, scale²) for every parameter, and the family of the posterior."""

    family: Literal["mean-field", "nearest-mean-field", "full"] = "mean-field"
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Run:
    """Budget and timeouts; times are in seconds."""

    rounds: float = 20.0
    tolerance: float = 1e-6
    deadline: float = 600.0
    """The time a client has to answer a task."""
    quorum: float = 0.5
    """The fraction of the selected clients that must answer for a round to proceed without the others."""
    assemble: float = 600.0
    """The enrolment timeout: how long to wait for all clients before the first round starts without the rest."""
    timeout: float = 86400.0
    """The time after which the server stops in any case."""


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Bounds on what a client sends; 0 for no bound. Those on factors are of `Admission`."""

    change: float = 0.0
    dominance: float = 0.0
    prominence: float = 0.0
    deficit: float = 0.0
    moments: float = 0.0
    """In round 0: how many sds a mean may lie from the median of all clients', and how many times an sd be theirs."""


@dataclasses.dataclass(frozen=True)
class Server:
    """Where the server is; everything goes over TLS, and every client has a key."""

    address: str = "127.0.0.1:9092"


@dataclasses.dataclass(frozen=True)
class Federation:
    """The configuration shared by server and clients: of a formula, or of columns and a model such as a network."""

    name: str
    clients: tuple[str, ...]
    fit: Settings | None = None
    """What `fit` takes: a formula, a likelihood and a prior."""
    data: Data | None = None
    model: Likelihood | None = None
    method: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"name": "sequential"})
    solver: Mapping[str, Any] = dataclasses.field(default_factory=lambda: dict(_DEFAULT_SOLVER))
    prior: Prior = Prior()
    run: Run = Run()
    admission: Bounds = Bounds()
    disclosure: Limits = Limits()
    """Limits on what a client discloses in round 0; its owner may set stricter ones."""
    server: Server = Server()
    seed: int = 0

    @property
    def digest(self) -> str:
        """A hash of all settings that answers depend on; a client with another digest is rejected."""
        about = dataclasses.asdict(self)
        agreed = {key: about[key] for key in ("name", "fit", "data", "model", "method", "solver", "prior", "seed")}
        return hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()[:16]

    def built_model(self, columns: int) -> Model:
        """The likelihood for this number of encoded columns."""
        assert self.model is not None
        return self.model.model(columns)

    def built_prior(self, model: Model, columns: int) -> Family:
        """The prior over the model's parameters."""
        kind: Any = _FAMILIES[self.prior.family]
        template = model.template() if isinstance(model, Template) else columns
        return kind.standard_normal(template, self.prior.scale)

    def built_method(self, model: Model | None = None) -> Method:
        """The method; a network starts near 0 with small variance."""
        settings = self.method_settings
        if isinstance(model, Template):
            settings["start"] = MeanFieldGaussian.tight(model.template(), self.seed)
        return method_named(**settings)

    @property
    def method_settings(self) -> dict[str, Any]:
        """The method's name and settings, with the solver if it takes one and the likelihood does not say which."""
        settings, solver = dict(self.method), dict(self.solver)
        if "solver" in settings_of(settings["name"]) and (self.fit is None or solver != _DEFAULT_SOLVER):
            settings["solver"] = solver_named(solver.pop("kind"), solver)
        return settings

    def built_admission(self) -> Admission:
        """The bounds on answers."""
        bounds = dataclasses.asdict(self.admission)
        return Admission(**{key: bounds[key] for key in Admission._fields if bounds[key]})


def load(folder: Path) -> Federation:
    """The federation whose file is in the folder."""
    path = folder / CONFIG_FILE
    try:
        contents = path.read_bytes()
    except FileNotFoundError:
        raise FederationError(f"There is no {path}: create it with `partita federation init {folder}`.") from None
    return read(contents, str(path))


def read(contents: bytes, source: str) -> Federation:
    """Parses and validates a federation's configuration."""
    federation = build(Federation, parse(contents, source), source)
    for mistake in _mistakes(federation, source):
        raise FederationError(f"{source} {mistake}.")
    federation.built_method()
    federation.built_admission().check()
    return federation


def _mistakes(federation: Federation, source: str) -> Iterator[str]:
    """What is wrong, each time as the rest of a sentence; a check may rely on those before it."""
    names, method, solver = federation.clients, federation.method, federation.solver
    if not names or len(set(names)) < len(names) or not all(names):
        yield f"needs at least one client, and unique names, not {list(names)}"
    for name in names:
        if not NAME.fullmatch(name) or ".pub" in name.casefold():
            yield f"has a client named {name!r}: use letters, digits, '-', '_' and '.' inside, and no '.pub'"
    if len({name.casefold() for name in names}) < len(names):
        yield f"has clients whose names differ in capitals only, which some disks do not tell apart: {list(names)}"
    for table, key in ((method, "name"), (solver, "kind")):
        if not isinstance(table.get(key), str):
            yield f"has a method or a solver without {key!r}: add it, as a text"
    if method["name"] not in NAMED:
        raise unknown(f"method in {source}", method["name"], NAMED)
    yield from _data_mistakes(federation, source)
    for name, value in dataclasses.asdict(federation.run).items():
        if name == "tolerance" and not 0 <= value < math.inf:
            yield "has an invalid run.tolerance: it must be a number of nats, 0 or more"
        elif not 0 < value < math.inf and name not in ("tolerance", "quorum"):
            yield f"has an invalid run.{name}: it must be a number above 0"
    if not 0 <= federation.admission.moments < math.inf:
        yield "has an invalid admission.moments: it must be a number, 0 or more"
    host_of(federation.server.address)


def _data_mistakes(federation: Federation, source: str) -> Iterator[str]:
    """What is wrong with the formula, or with columns and model."""
    data, model, solver = federation.data, federation.model, federation.solver
    if federation.fit is not None:
        if data is not None or model is not None or federation.prior != Prior():
            yield "has [fit], which says what is fitted: leave out [data], [model] and [prior]"
        return
    if data is None or model is None:
        yield "has no [fit] with a formula: add it, or [data] and [model] for a network"
        return
    if model.kind not in KINDS:
        raise unknown(f"kind of model in {source}", model.kind, KINDS)
    columns = [*data.numbers, *data.categories, data.response]
    if len(set(columns)) < len(columns) or len(columns) < 2:
        yield f"needs at least one column besides the response, without duplicates: {columns}"
    for column, levels in data.categories.items():
        if not isinstance(levels, list) or not all(isinstance(level, str) for level in levels):
            yield f"has {levels!r} as the levels of {column!r}, where a list of texts is expected"
    if set(data.positive) & set(data.negative):
        yield f"has labels of {data.response!r} that are both positive and negative: leave them in one of the lists"
    if data.negative and not data.positive:
        yield f"has negative labels without positive ones: list the values of {data.response!r} that count as 1"
    fits = solver["kind"] not in ("newton", "conjugate") and federation.prior.family == "mean-field"
    if isinstance(federation.built_model(1), Template) and not fits:
        yield 'has a network, which needs a solver of kind "adam" and a "mean-field" prior'


def shared_folder(address: str) -> Path | None:
    """The folder that is the way to the server, if the address names one; the address of a port has none."""
    if not address.startswith(_FOLDER):
        return None
    path = Path(address.removeprefix(_FOLDER))
    if not path.is_absolute():
        raise FederationError(f"The address {address!r} names no whole path: write it as folder:/mnt/share.")
    return path


def host_of(address: str) -> str:
    """The host that the server's certificate names; an `InputError` where the address cannot be one."""
    return host_and_port(address)[0] if shared_folder(address) is None else "localhost"


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of the server's address; IPv6 addresses have brackets there."""
    name, _, port = address.rpartition(":")
    host = name[1:-1] if name.startswith("[") and name.endswith("]") else name
    try:
        number = ipaddress.ip_address(host)
        named = (number.version == 6) == (host != name)
    except ValueError:
        number, named = None, _HOST.fullmatch(name) is not None
    if not named or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 2**16:
        raise FederationError(
            f"The address {address!r} is not a host and a port from 1 to 65535, such as 127.0.0.1:9092: give both."
        )
    if number is not None and number.is_unspecified:
        raise FederationError(
            f"{host} is no address that clients can reach: give the server's name or address on the network; it "
            "listens on all its interfaces."
        )
    return host, int(port)


def loopback(host: str) -> bool:
    """Whether a host is on loopback."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
