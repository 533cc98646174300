"""A federation of real processes, of which any may be killed, stopped, given a wrong clock or a full disk."""

import contextlib
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from partita.errors import InputError
from partita.federation import config
from partita.federation.clock import awake
from partita.federation.status import read_status
from support import clock, processes
from support.clinic_files import clinic, write

CLIENTS = ("east", "west")
SERVER, LINK = "server", "link"
HANGS = 240.0
"""Seconds without what is waited for after which a run hangs."""
_MEGABYTES = 160
"""The size of a disk; a ledger takes 64 for what is written meanwhile, whatever it holds."""
_SETTINGS = {"rounds = 20": "rounds = 400", "tolerance = 1e-6": "tolerance = 1e-10", "quorum = 0.5": "quorum = 1.0"}
"""Everybody is awaited, so that a fault changes when something happens, and nothing else."""


class EndedError(Exception):
    """The server has ended by itself."""


class Scene:
    """A server, two clients, and a link between them, each a process; all but the link have a clock and a disk."""

    def __init__(self, folder, method, damping=None):
        self.folder, self.running, made = folder, {}, folder / "made"
        made.mkdir(parents=True)
        study, files = processes.federation(made, CLIENTS, _rows, method)
        settings = _SETTINGS if damping is None else {**_SETTINGS, f'"{method}"': f'"{method}"\ndamping = {damping}'}
        for path in (study, *(study / "clients" / name for name in CLIENTS)):
            text = (path / config.CONFIG_FILE).read_text()
            for old, new in settings.items():
                text = text.replace(old, new)
            (path / config.CONFIG_FILE).write_text(text)
        port, relay = config.load(study).server.address.rpartition(":")[2], str(processes.free_port())
        self._relay = [sys.executable, str(Path(__file__).with_name("relay.py")), relay, port]
        disks = {name: folder / name for name in (SERVER, *CLIENTS)}
        for disk in disks.values():
            disk.mkdir()
        self.disks = all(map(_mounted, disks.values()))
        """Whether disks can be full."""
        self.study = shutil.copytree(study, disks[SERVER] / "study")
        self._commands = {SERVER: ["server", str(self.study)]}
        self.files = {name: Path(shutil.copy(files[name], disks[name] / "rows.csv")) for name in CLIENTS}
        for name, path in self.files.items():
            own = shutil.copytree(study / "clients" / name, disks[name] / "study")
            self._commands[name] = ["client", str(own), "--name", name, "--data", str(path)]
            self._commands[name] += ["--address", f"127.0.0.1:{relay}"]
        for name in self._commands:
            self.set_clock(name, 0.0)

    def __enter__(self):
        for name in (LINK, *CLIENTS, SERVER):
            self.start(name)
        return self

    def __exit__(self, *_):
        for process in self.running.values():
            process.kill()
            process.wait()
        for name in (SERVER, *CLIENTS):
            subprocess.run(["umount", "-l", self.folder / name], check=False, capture_output=True)

    def start(self, name):
        """Starts a part; a server that has a ledger is resumed."""
        command = list(self._commands.get(name, []))
        if name == SERVER and (self.study / "ledger.sqlite").exists():
            command[0] = "resume"
        clocked = [sys.executable, clock.__file__, str(self._clock(name)), *command]
        with self.log(name).open("ab") as log:
            self.running[name] = subprocess.Popen(self._relay if name == LINK else clocked, stdout=log, stderr=log)

    def kill(self, name):
        """As `kill -9` does."""
        self.running[name].kill()
        self.running[name].wait()

    @contextlib.contextmanager
    def stopped(self, name):
        """A part does nothing for a while, and its connections stay."""
        self.running[name].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.running[name].send_signal(signal.SIGCONT)

    def set_clock(self, name, seconds):
        """Moves a part's time of day."""
        clock.set_by(self._clock(name), seconds)

    @contextlib.contextmanager
    def full(self, name):
        """Nothing more can be written to a part's disk."""
        filler = self.folder / name / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(2**12)):
                pass
        try:
            yield
        finally:
            filler.unlink()

    def log(self, name):
        """What a part has said."""
        return self.folder / f"{name}.txt"

    def said(self, name, words):
        """How often a part has said something."""
        return self.log(name).read_text(errors="replace").count(words)

    def communications(self):
        """How many answers have been taken in."""
        with contextlib.suppress(InputError):
            about = config.load(self.study)
            return read_status(self.study, about.name, about.clients).communications
        return 0

    @property
    def ended(self):
        """Whether the server has ended by itself."""
        return self.running[SERVER].poll() is not None

    def wait(self, come):
        """Waits for something; an `EndedError` if the server ends before."""
        now = awake()  # all of a machine's processes may be stopped together
        until = now() + HANGS
        while not come():
            if self.ended:
                raise EndedError
            if now() > until:
                raise TimeoutError(f"{come} did not come true in {HANGS:.0f} s")
            time.sleep(0.05)

    def _clock(self, name):
        return self.folder / f"{name}.clock"


def _rows(path, name):
    columns = ("age", "pressure", "pain", "ill")
    write(path, [(*row[:3], row[4]) for row in clinic(CLIENTS.index(name))], columns)


def _mounted(disk):
    """Makes a folder a small disk of its own, where this process may."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={_MEGABYTES}m,mode=0700", "none", str(disk)]
    with contextlib.suppress(OSError):
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    return False
