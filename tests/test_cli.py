"""The command line as a user meets it: the demo, help and version in processes of their own."""

import json
import subprocess
import sys

import numpy as np
import pytest

import partita as pt
from partita.cli import main
from partita.results.posterior_file import load_posterior


def partita(*arguments, timeout=300):
    return subprocess.run(
        [sys.executable, "-m", "partita", *arguments], capture_output=True, text=True, timeout=timeout, check=False
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    size = ("--family", "mean-field", "--rows", "1000", "--communications", "40")
    done = partita("demo", *size, "--json", "--output", str(folder))
    return folder, done


def test_json_is_one_object_with_every_method(demo):
    _, done = demo
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    for name in ("global_vi", "sequential", "synchronous", "asynchronous", "alone_best", "alone_mean"):
        row = report["methods"][name]
        assert {"free_energy", "nll", "error", "communications", "seconds"} <= set(row)
        assert np.isfinite([row["free_energy"], row["nll"]]).all()
    assert {"compilation", "fitting"} <= set(report["seconds"])
    assert report["methods"]["sequential"]["communications"] == 40
    assert "with full covariance that of" in report["caveat"]
    assert report["caveat"].endswith("use --family full.")


def test_pvi_beats_a_client_alone_and_no_one_beats_global_vi(demo):
    rows = json.loads(demo[1].stdout)["methods"]
    for name in ("sequential", "synchronous", "asynchronous"):
        assert rows["alone_best"]["free_energy"] < rows[name]["free_energy"] <= rows["global_vi"]["free_energy"] + 1e-3


def test_without_a_terminal_only_the_json_object_is_printed(demo):
    assert demo[1].stderr == ""


def test_the_listed_files_have_the_reported_contents(demo):
    folder, done = demo
    files = json.loads(done.stdout)["files"]
    posterior, about = load_posterior(files["posterior"], pt.MeanFieldGaussian.standard_normal(109))
    assert posterior.is_proper()
    assert about["names"][0] == "intercept"
    header, first = (folder / "summary.csv").read_text().splitlines()[:2]
    assert header == "name,mean,sd,low,high"
    assert first.startswith("intercept,")
    assert (folder / "demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo", "--damping", "0"], "damping"),
        (["demo", "--output", "/proc/nowhere/partita"], "choose another place"),
        (["demo", "--split", "C"], "'A', 'B'"),
        (["fits"], "No such command"),
        (["fit"], "Missing argument"),
    ],
)
def test_invalid_arguments_print_an_error_message_without_traceback(arguments, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["partita", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""


def test_help_and_version():
    assert "demo" in partita("--help").stdout
    assert "--damping" in partita("demo", "--help").stdout
    assert partita("--version").stdout.strip() == pt.__version__
