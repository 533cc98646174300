"""Compiled programs are kept on request, within a bound, by several processes at a time."""

import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from partita.cli.beginning import begin
from partita.errors import InputError
from partita.io import programs
from partita.io.programs import keep_programs, programs_folder

PROGRAM = """
import sys
import jax
from partita.io.programs import keep_programs

keep_programs(sys.argv[1])
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name))
jax.jit(lambda x: x * 3 + 1)(2.0)
print(sum(name == "/jax/compilation_cache/cache_hits" for name in hits) > 0)
"""


def begun(folder):
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder)], stdout=subprocess.PIPE, text=True)


def test_a_process_takes_what_others_have_compiled(tmp_path):
    folder = tmp_path / "programs"
    both = [begun(folder), begun(folder)]
    assert "False" in [process.communicate(timeout=300)[0].strip() for process in both], "one of them is the first"
    kept = sorted(path.name for path in folder.glob("*-cache"))
    assert kept
    assert begun(folder).communicate(timeout=300)[0].strip() == "True"
    assert sorted(path.name for path in folder.iterdir()) == sorted([*kept, "lock"])
    if os.name == "posix":
        assert folder.stat().st_mode & 0o077 == 0


def test_the_oldest_programs_go_and_what_killed_processes_left(tmp_path):
    for age, name in enumerate(("a-cache", "b-cache", "c-cache")):
        (tmp_path / name).write_bytes(bytes(600))
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))
    for name, age in (("process-old", 2 * 86400), ("process-new", 60)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))
    programs._tidied(tmp_path, 1200)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-cache", "b-cache", "process-new"]


@pytest.mark.parametrize(("said", "expected"), [("off", None), ("", None), ("/there", Path("/there"))])
def test_the_environment_says_where_or_that_none_are_kept(said, expected, monkeypatch):
    monkeypatch.setenv(programs.VARIABLE, said)
    assert programs_folder() == expected


def test_by_default_it_is_the_users_cache_folder_unless_jax_has_one(monkeypatch):
    monkeypatch.delenv(programs.VARIABLE, raising=False)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    folder = programs_folder()
    assert folder is not None
    assert folder.parts[-2:] == ("partita", "programs")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/elsewhere")
    assert programs_folder() is None


def test_importing_sets_no_folder():
    assert keep_programs
    assert jax.config.jax_compilation_cache_dir is None


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_a_folder_that_others_write_to_is_refused(tmp_path, capsys, monkeypatch):
    """They could have this process run what they like."""
    tmp_path.chmod(0o775)
    with pytest.raises(InputError, match="Others can write to"):
        keep_programs(tmp_path)
    monkeypatch.setenv(programs.VARIABLE, str(tmp_path))
    begin()
    assert "chmod go-w" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
