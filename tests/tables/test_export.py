"""Exports: what another program reads is the fit."""

import csv
import json

import arviz_base
import jax
import numpy as np
import pytest
import xarray
from arviz_stats.base import array_stats

import partita as pt
from partita.errors import InputError
from partita.tables.fitted import rows_of
from partita.tables.loo import pointwise
from support.patients import PATIENTS, fitted


@pytest.mark.parametrize("family", ["bernoulli", "gaussian"])
def test_json_alone_gives_the_predictions(family, tmp_path):
    """Read with json and numpy: coefficients by name, columns in their own units, indicators of levels."""
    fit = fitted(family)
    fit.to_json(tmp_path / "fit.json")
    told = json.loads((tmp_path / "fit.json").read_text(encoding="utf-8"))
    columns = {"Intercept": np.ones(len(PATIENTS)), "age": PATIENTS.age.to_numpy()}
    for name in ("sex", "ward"):
        columns |= {
            f"{name}[T.{level}]": (PATIENTS[name] == level).to_numpy(float) for level in PATIENTS[name].unique()
        }
    x = np.stack([columns[name] for name in told["names"]], axis=1)
    mean = x @ np.array(told["mean"])
    variance = np.einsum("nd,de,ne->n", x, np.array(told["covariance"]), x)
    found = 1 / (1 + np.exp(-mean / np.sqrt(1 + np.pi * variance / 8))) if family == "bernoulli" else mean
    np.testing.assert_allclose(found, fit.predict(PATIENTS), rtol=1e-9)
    assert told["references"]["sex"] == "f"
    assert told["sites"]["Hull"] == {"rows": int((PATIENTS.hospital == "Hull").sum()), "dropped": 0}
    assert told["free_energy"] == fit.result.free_energy
    assert told["version"] == pt.__version__
    assert told["notes"] == list(fit.notes)


def test_csv_has_a_row_per_coefficient(tmp_path):
    fit = fitted("bernoulli")
    fit.to_csv(tmp_path / "coefficients.csv", mass=0.9)
    rows = list(csv.DictReader((tmp_path / "coefficients.csv").read_text().splitlines()))
    assert [row["name"] for row in rows] == list(fit.names)
    for row, told in zip(rows, fit.coefficients(0.9), strict=True):
        assert [float(row[name]) for name in ("mean", "sd", "low", "high")] == [told.mean, told.sd, told.low, told.high]
        assert float(row["ratio_high"]) == told.ratio[2]


def test_arviz_has_the_posterior_and_rows_only_where_they_are_asked_for(tmp_path):
    fit = fitted("gaussian")
    tree = fit.to_arviz(draws=4000)
    assert list(tree.children) == ["posterior"]
    draws = tree["posterior"]["coefficients"]
    assert draws.sizes == {"chain": 4, "draw": 1000, "coefficient": 3}
    assert list(draws.coords["coefficient"].values) == list(fit.names)
    flat = draws.values.reshape(-1, 3)
    sds = np.sqrt(np.diag(fit.covariance))
    np.testing.assert_allclose(flat.mean(axis=0), fit.mean, atol=5 * sds.max() / np.sqrt(4000))
    np.testing.assert_allclose(np.cov(flat.T) / np.outer(sds, sds), fit.covariance / np.outer(sds, sds), atol=0.1)
    tree.to_netcdf(tmp_path / "fit.nc")
    again = xarray.open_datatree(tmp_path / "fit.nc")
    np.testing.assert_array_equal(again["posterior"]["coefficients"].values, draws.values)
    assert again.attrs["formula"] == "pressure ~ age + sex"
    assert arviz_base.convert_to_datatree(tree) is tree
    again.close()


def test_arviz_computes_loo_of_the_rows():
    fit = fitted("gaussian")
    tree = fit.to_arviz(draws=400, rows=True, seed=1)
    density = tree["log_likelihood"]["pressure"]
    assert density.sizes == {"chain": 4, "draw": 100, "row": 420}
    theirs = sum(array_stats.loo(density.values[..., place])[0] for place in range(420))
    with jax.enable_x64(True):
        theta = fit.result.posterior.q.sample(jax.random.key(1), (400,))
        model = fit.result.posterior.model
        ours = [p[0] for rows in rows_of(fit).values() for p in pointwise(model, rows, theta, np.zeros(400))]
    assert theirs == pytest.approx(np.concatenate(ours).sum(), rel=1e-9)
    observed = tree["observed_data"]["pressure"]
    york = observed.values[observed.coords["site"].values == "York"]
    np.testing.assert_allclose(york, PATIENTS.pressure[PATIENTS.hospital == "York"])


def test_mistakes_are_one_sentence(tmp_path):
    fit = fitted("gaussian")
    with pytest.raises(InputError, match="path"):
        fit.to_json(3)
    with pytest.raises(InputError, match="draws"):
        fit.to_arviz(draws=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="written"):
        fit.to_csv(tmp_path / "file" / "coefficients.csv")
