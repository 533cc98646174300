"""Forest plots: what is drawn is what the factors say, and pictures say what they cannot show."""

import dataclasses

import numpy as np
import pytest
from typer.testing import CliRunner

import partita as pt
from partita.cli import app
from partita.errors import InputError
from support.patients import PATIENTS, fitted

REACH = 1.959963984540054


def drawn(figure):
    """The ends of every interval, by the label of its kind, from the top."""
    lines = [line for axes in figure.axes for line in axes.get_lines() if len(line.get_xdata()) == 3]
    return np.array([line.get_xdata() for line in lines])


def test_intervals_are_those_of_the_factors_on_the_scale_of_ratios():
    fit = fitted("bernoulli")
    told = fit.by_site("age")
    order = [site["alone"] for site in told.values()] + [site["without"] for site in told.values()]
    order.append(told["Hull"]["all"])
    expected = [np.exp([mean - REACH * sd, mean, mean + REACH * sd]) for mean, sd in order]
    figure = fit.forest("age")
    np.testing.assert_allclose(drawn(figure), expected, rtol=1e-12)
    assert figure.axes[0].get_xscale() == "log"
    assert figure.axes[0].get_xlabel() == "odds ratio"
    plain = fitted("gaussian").forest("age")
    assert plain.axes[0].get_xscale() == "linear"
    mean, sd = fitted("gaussian").by_site("age")["Hull"]["alone"]
    np.testing.assert_allclose(drawn(plain)[0], [mean - REACH * sd, mean, mean + REACH * sd])


def test_a_category_is_drawn_with_all_its_levels():
    figure = fitted("bernoulli").forest("ward")
    assert [axes.get_title("left") for axes in figure.axes] == ["ward[T.b]", "ward[T.c]"]


def test_an_improper_site_is_said_to_be_so(monkeypatch):
    fit = fitted("gaussian")
    told = fit.by_site("age")
    del told["York"]["alone"]
    monkeypatch.setattr(type(fit), "by_site", lambda self, name: told)
    texts = [text.get_text() for text in fit.forest("age").axes[0].texts]
    assert "this site alone: improper, no estimate" in texts


def test_names_are_no_mathematics(tmp_path):
    frame = PATIENTS.assign(hospital=PATIENTS.hospital.replace("Hull", "$a_$^x$"))
    fit = pt.fit("pressure ~ age + sex", frame, sites="hospital")
    fit.forest("age", tmp_path / "forest.svg")
    assert (tmp_path / "forest.svg").stat().st_size > 5000


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda fit: fit.forest("height"), "height"),
        (lambda fit: fit.forest(3), "text"),
        (lambda fit: fit.forest("age", mass=2), "between 0 and 1"),
        (lambda fit: fit.forest("age", "forest.docx"), "forest.docx"),
        (lambda fit: dataclasses.replace(fit, sites=fit.sites[:1]).forest("age"), "one site"),
    ],
)
def test_mistakes_are_one_sentence(call, said):
    with pytest.raises(InputError, match=said):
        call(fitted("bernoulli"))


def test_the_command_draws(tmp_path):
    path, picture = tmp_path / "patients.csv", tmp_path / "forest.png"
    PATIENTS.to_csv(path, index=False)
    command = ["fit", "pressure ~ age + sex", str(path), "--sites", "hospital"]
    done = CliRunner().invoke(app, [*command, "--forest", "age", "--output", str(picture)])
    assert done.exit_code == 0, done.output
    assert picture.read_bytes().startswith(b"\x89PNG")
