"""Programs end with whoever started them, and with all that they started."""

import subprocess
import sys

from partita.federation import keeper
from support import processes


def test_child_processes_end_when_their_keeper_closes(tmp_path):
    mark = tmp_path / "mark"
    script = f"sh -c 'sleep 1000; echo {mark}' & echo started; sleep 1000; echo {mark}"
    command = [sys.executable, keeper.__file__, "sh", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"started\n"
        # a child that a shell has forked bears the shell's arguments until it becomes what it is to run
        assert processes.until(lambda: len(processes.of(mark)) == 3, 30)
        process.stdin.close()
        assert process.wait(30) == 0
    assert not processes.of(mark)


def test_the_exit_code_is_passed_on():
    command = [sys.executable, keeper.__file__, "sh", "-c", "exit 3"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.wait(30) == 3
