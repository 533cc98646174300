"""Fits as time goes on: batches taken in and divided out, against fits of all rows at once; and their folders."""

import dataclasses
import json

import numpy as np
import pandas
import pytest
from jax import enable_x64
from scipy import stats
from typer.testing import CliRunner

import partita as pt
from partita.cli import app
from partita.errors import InputError
from partita.server.bound import partition_free_energy
from partita.tables.drift import drift_of

MONTHS = [f"2026-{month:02}" for month in range(1, 13)]


def table(size, seed, shift=0.0):
    generator = np.random.default_rng(seed)
    age, sex = generator.normal(60, 12, size), generator.choice(["f", "m"], size)
    slope = 0.03 + shift
    frame = pandas.DataFrame({"age": age, "sex": sex, "site": np.array(["Hull", "Leeds", "York"])[np.arange(size) % 3]})
    predictor = -0.5 + slope * (age - 60) + 0.5 * (sex == "m")
    frame["died"] = (generator.random(size) < 1 / (1 + np.exp(-predictor))).astype(int)
    frame["visits"] = generator.poisson(np.exp(0.5 + slope / 3 * (age - 60)))
    frame["pressure"] = 120 + 10 * predictor + generator.normal(0, 9, size)
    return frame


FIRST = table(240, 0)
TABLES = {month: table(80, 1 + place) for place, month in enumerate(MONTHS)}
FORMULAS = {
    "bernoulli": "died ~ age + sex",
    "gaussian": "pressure ~ age + sex",
    "probit": "died ~ age + sex",
    "poisson": "visits ~ age + sex",
}


def anew(fit, parts=None):
    """A run on the rows of a fit that knows of nothing before, to the last digits."""
    with enable_x64(True):
        given = (fit.spec.method(), fit.spec.model(), fit.prior, parts or fit.partition)
        return pt.run(*given, tolerance=1e-13, monitor=pt.Monitor(progress=False))


def apart(fit, result):
    with enable_x64(True):
        p, q = fit.result.posterior.q, result.posterior.q
        return max(float(p.kl(q)), float(q.kl(p)))


@pytest.fixture(scope="module")
def fits():
    return {name: pt.fit(FORMULAS[name], FIRST, family=name, sites="site") for name in ("bernoulli", "gaussian")}


def year_begun():
    return pt.fit("died ~ age + sex", TABLES[MONTHS[0]], family="bernoulli")


@pytest.fixture(scope="module")
def year():
    """Twelve months, one after another."""
    fit = year_begun()
    for month in MONTHS[1:]:
        fit = fit.update(TABLES[month], month)
    return fit


def check_without(fit):
    """Without a site it is the fit that never had it: to a millionth of a nat, on the design that was agreed on."""
    fewer = fit.without("Hull")
    never = anew(fewer)
    assert fewer.partition.rows == 160
    assert apart(fewer, never) < 1e-6
    assert abs(fewer.free_energy - never.free_energy) < 1e-6
    assert [site.name for site in fewer.sites] == ["Leeds", "York"]
    return fewer, never


def test_without_a_site_it_is_the_fit_that_never_had_it(fits):
    check_without(fits["bernoulli"])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["probit", "poisson"])
def test_without_a_site_other_likelihoods_have_never_had_it_either(family):
    check_without(pt.fit(FORMULAS[family], FIRST, family=family, sites="site"))


def test_without_a_site_learned_noise_is_learned_anew(fits):
    fewer, never = check_without(fits["gaussian"])
    np.testing.assert_allclose(fewer.result.state.hyper["noise"], never.state.hyper["noise"], rtol=1e-5)


def test_twelve_updates_and_a_revisit_are_the_fit_of_all_months(year):
    settled, pooled = year.revisited(), year.partition.pooled()
    whole = anew(settled, pooled)
    assert pooled.rows == 960
    assert apart(settled, whole) < 1e-6
    assert abs(settled.free_energy - whole.free_energy) < 1e-6
    with enable_x64(True):
        once = year.stream.revisit(year.partition, rounds=1)
        exact = partition_free_energy(once.posterior.model, year.partition, year.prior, once.posterior.q, 0)
    assert 0 <= whole.free_energy - exact < 0.01


def test_without_a_revisit_the_factors_tell_the_free_energy_nearly(year):
    whole = anew(year)
    assert apart(year, whole) < 0.05
    assert abs(year.free_energy - whole.free_energy) < 0.2
    assert year.stream.names == ("all rows", *MONTHS[1:])
    assert "960 rows" in year.notes[0]


def test_an_update_that_revisits_is_an_update_and_a_revisit(fits):
    first = fits["bernoulli"]
    one = first.update(TABLES["2026-01"], "2026-01", revisit=True)
    assert apart(one, anew(one)) < 1e-6
    assert one.partition.names == ("Hull", "Leeds", "York", "2026-01")
    assert first.partition.names == ("Hull", "Leeds", "York")
    back = one.without("2026-01")
    assert apart(back, anew(first)) < 1e-6


def test_a_change_is_seen_when_it_comes_and_not_before(fits):
    fit = fits["gaussian"]
    for month in MONTHS[:3]:
        fit = fit.update(TABLES[month], month)
    fit = fit.update(table(80, 50, shift=0.1), "changed")
    found = {row.name: row for row in fit.drift().batches}
    assert list(found) == ["Hull", "Leeds", "York", *MONTHS[:3], "changed"]
    assert all(row.probability > 0.001 for row in found.values() if row.name != "changed")
    assert found["changed"].probability < 1e-6
    assert found["changed"].ratio > 5
    assert {row.expected for row in found.values()} == {1.5}


def test_where_nothing_changes_drift_has_its_distribution():
    """Of a conjugate model with parameters from the prior: twice the nats are chi-square with 3 degrees of freedom."""
    generator = np.random.default_rng(0)
    stream = pt.Stream(pt.methods.sequential(pt.Conjugate()), pt.LinearRegression(), pt.FullGaussian.standard_normal(3))
    x = generator.normal(size=(10, 3))
    begun = stream.add(pt.Table(x, np.zeros(10)), "a").add(pt.Table(x[:6], np.zeros(6)), "b")
    squares = []
    for _ in range(60):
        theta = generator.normal(size=3)
        ys = [rows @ theta + generator.normal(size=len(rows)) for rows in (x, x[:6])]
        factors = [
            dataclasses.replace(
                factor, natural=dataclasses.replace(factor.natural, precision_mean=np.asarray(rows.T @ y))
            )
            for factor, rows, y in zip(begun.state.factors, (x, x[:6]), ys, strict=True)
        ]
        (row,) = drift_of(dataclasses.replace(begun.state, factors=tuple(factors)), begun.batches).batches
        squares.append(2 * row.nats)
    assert stats.kstest(squares, stats.chi2(3).cdf).pvalue > 0.01
    assert row.expected == 1.5


def test_one_batch_has_nothing_to_drift_from():
    found = year_begun().drift()
    assert found.batches == ()
    assert "All rows came as one batch" in repr(found)


@pytest.fixture
def study(tmp_path):
    FIRST.to_csv(tmp_path / "first.csv", index=False)
    for month in MONTHS[:2]:
        TABLES[month].to_csv(tmp_path / f"{month}.csv", index=False)
    fit = pt.fit("died ~ age + sex", tmp_path / "first.csv", family="bernoulli", sites="site")
    fit.save(tmp_path / "study")
    return tmp_path / "study"


def command(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_fit_goes_on_from_its_folder(study, fits):
    files = sorted(path.name for path in study.iterdir())
    assert "study.json" in files
    assert len(files) == 2
    assert FIRST.age[0].astype(str) not in (study / "study.json").read_text()
    loaded = pt.Fit.load(study)
    assert repr(loaded) == repr(fits["bernoulli"])
    assert loaded.free_energy == pytest.approx(fits["bernoulli"].free_energy, rel=1e-12)
    np.testing.assert_allclose(loaded.predict(FIRST), fits["bernoulli"].predict(FIRST), rtol=1e-12)
    file = study.parent / "2026-01.csv"
    for revisit in (False, True):
        one, other = (fit.update(file, "2026-01", revisit) for fit in (loaded, fits["bernoulli"]))
        np.testing.assert_allclose(one.mean, other.mean, rtol=1e-8)
    np.testing.assert_allclose(loaded.without("York").mean, fits["bernoulli"].without("York").mean, rtol=1e-8)


def test_commands_go_on_from_the_folder_of_a_fit(study, tmp_path):
    words = ("fit", "died ~ age + sex", tmp_path / "first.csv", "--family", "bernoulli", "--sites", "site")
    assert command(*words, "--output", study).exit_code == 0
    done = command("update", study, tmp_path / "2026-01.csv", "--name", "2026-01", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["sites"]["2026-01"] == {"rows": 80, "dropped": 0}
    done = command("update", study, tmp_path / "2026-02.csv", "--name", "2026-02", "--revisit")
    assert "400 rows of 5 sites" in done.output
    drift = json.loads(command("drift", study, "--json").output)
    assert [row["name"] for row in drift] == ["Hull", "Leeds", "York", "2026-01", "2026-02"]
    assert "probability" in command("drift", study).output
    done = command("forget", study, "Hull", "--json")
    assert list(json.loads(done.output)["sites"]) == ["Leeds", "York", "2026-01", "2026-02"]
    assert pt.Fit.load(study).stream.names == ("Leeds", "York", "2026-01", "2026-02")
    assert len(list(study.glob("*.npz"))) == 1


def refused(call, said):
    with pytest.raises(InputError, match=said) as error:
        call()
    assert "\n" not in str(error.value)


def test_files_that_changed_or_are_gone_are_named(study, tmp_path):
    loaded = pt.Fit.load(study)
    first = tmp_path / "first.csv"
    first.write_text(first.read_text() + "1,f,Hull,0,0,0\n")
    update = tmp_path / "2026-01.csv"
    refused(lambda: loaded.update(update, "2026-01", revisit=True), "first.csv has changed")
    first.unlink()
    refused(lambda: loaded.without("York"), "first.csv is gone")
    assert loaded.update(update, "2026-01").stream.names[-1] == "2026-01"
    frame = pt.fit("died ~ age + sex", FIRST, family="bernoulli", sites="site")
    frame.save(study)
    refused(lambda: pt.Fit.load(study).without("York"), "came from no file")


def damaged(path):
    text = path.read_text()
    return {
        "cut": text[: len(text) // 2],
        "another number": text.replace('"rows": 80', '"rows": 81'),
        "a list": "[]",
        "nothing": "",
        "binary": "\0",
    }


def test_a_damaged_folder_is_one_sentence_and_stays(study):
    contents, (factors,) = study / "study.json", study.glob("*.npz")
    whole, bytes_ = contents.read_text(), factors.read_bytes()
    for text in damaged(contents).values():
        contents.write_text(text)
        refused(lambda: pt.Fit.load(study), "study.json is not a partita study")
        assert contents.read_text() == text
    contents.write_text(whole)
    factors.write_bytes(bytes_[:-100])
    refused(lambda: pt.Fit.load(study), "corrupt")
    factors.unlink()
    refused(lambda: pt.Fit.load(study), "no file")
    contents.unlink()
    refused(lambda: pt.Fit.load(study), "no folder of a fit")
    refused(lambda: pt.Fit.load(study / "nowhere"), "no folder of a fit")
    refused(lambda: pt.Fit.load(3), "path")


def test_an_update_that_fails_leaves_the_folder_as_it_was(study, tmp_path, monkeypatch):
    before = {path.name: path.read_bytes() for path in study.iterdir()}

    def full(*_):
        raise pt.errors.DiskError("study.json", "no space")

    monkeypatch.setattr("partita.tables.study.write_text", full)
    updated = pt.Fit.load(study).update(tmp_path / "2026-01.csv", "2026-01")
    refused(lambda: updated.save(study), "no space")
    assert {path.name: path.read_bytes() for path in study.iterdir()} == before


MISTAKES = {
    "batch named 'Hull' already": lambda fit: fit.update(FIRST, "Hull"),
    "must be a text": lambda fit: fit.update(FIRST, 3),
    "no column 'age'": lambda fit: fit.update(FIRST.drop(columns="age"), "x"),
    "no rows": lambda fit: fit.update(FIRST.head(0), "x"),
    "missing value": lambda fit: fit.update(FIRST.assign(age=np.nan), "x"),
    "holds texts": lambda fit: fit.update(FIRST.assign(age="old"), "x"),
    "level 'x'": lambda fit: fit.update(FIRST.assign(sex="x"), "y"),
    "labels are 0 or 1": lambda fit: fit.update(FIRST.assign(died=2), "x"),
    "not a table": lambda fit: fit.update(3, "x"),
    "no file": lambda fit: fit.update("nowhere.csv", "x"),
    "True or False": lambda fit: fit.update(FIRST, "x", revisit="yes"),
    "site or batch named 'Bath'": lambda fit: fit.without("Bath"),
    "only batch": lambda fit: fit.without("Hull").without("Leeds").without("York"),
    "path must be": lambda fit: fit.save(""),
}


@pytest.mark.parametrize("said", MISTAKES)
def test_mistakes_are_one_sentence(said, fits):
    refused(lambda: MISTAKES[said](fits["bernoulli"]), said)


def test_commands_say_what_is_wrong_in_one_sentence(study, tmp_path):
    for words, said in (
        (("update", study, tmp_path / "2026-01.csv", "--name", "Hull"), "already"),
        (("update", tmp_path, tmp_path / "2026-01.csv", "--name", "x"), "no folder of a fit"),
        (("forget", study, "Bath"), "Bath"),
        (("drift", tmp_path), "no folder of a fit"),
    ):
        done = command(*words)
        assert isinstance(done.exception, InputError), words
        assert said in str(done.exception)
    assert pt.Fit.load(study).stream.names == ("Hull", "Leeds", "York")
