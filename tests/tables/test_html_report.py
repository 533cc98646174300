"""Reports: one file, without anything to load, in which names are texts; and the folder that the command writes."""

import html.parser
import json
import re

import pytest
from typer.testing import CliRunner

import partita as pt
from partita.cli import app
from partita.errors import InputError
from support.patients import PATIENTS, fitted

EVIL = "<script>alert('x')</script>"


class Elements(html.parser.HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, text):
        super().__init__()
        self.found, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    fitted("bernoulli").report(path)
    return path.read_text(encoding="utf-8")


def test_it_loads_nothing(page):
    elements = Elements(page)
    assert "script" not in {tag for tag, _ in elements.found}
    links = [value for _, attrs in elements.found for name, value in attrs.items() if name in ("src", "href")]
    assert links
    assert all(link.startswith("data:image/svg+xml;base64,") for link in links)
    assert not re.search(r"url\(|@import|https?://", page)


def test_it_has_every_part(page):
    fit = fitted("bernoulli")
    text = Elements(page).text
    for note in (*fit.notes, *fit.check().notes, *fit.loo().notes):
        assert note in text
    for row in fit.coefficients():
        assert row.name in text
    for part in ("Coefficients", "Sites", "Heterogeneity", "Checks", "left out", "computed", "What left the sites"):
        assert part in text
    pictures = [attrs["alt"] for tag, attrs in Elements(page).found if tag == "img"]
    assert pictures == [f"Forest plot of {name}" for name in fit.names[1:]] + ["Calibration by site"]


def test_names_are_texts_and_no_markup(tmp_path):
    frame = PATIENTS.rename(columns={"age": EVIL}).assign(hospital=PATIENTS.hospital + EVIL)
    fit = pt.fit(f"pressure ~ `{EVIL}` + sex", frame, sites="hospital")
    fit.report(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script" not in text
    assert EVIL in Elements(text).text


def test_one_site_has_a_report_as_well(tmp_path):
    fitted("gaussian", sites=None).report(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "nothing to compare" in text
    with pytest.raises(InputError, match="path"):
        fitted("gaussian", sites=None).report(3)


def test_the_command_writes_a_folder(tmp_path):
    path, folder = tmp_path / "patients.csv", tmp_path / "results"
    PATIENTS.to_csv(path, index=False)
    command = ["fit", "pressure ~ age + sex", str(path), "--sites", "hospital", "--output", str(folder)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    written = {each.name for each in folder.iterdir() if not each.name.startswith("factors-")}
    assert written == {"fit.json", "coefficients.csv", "report.html", "forest.png", "study.json"}
    told = json.loads((folder / "fit.json").read_text())
    assert told["mean"] == pytest.approx(fitted("gaussian").mean.tolist(), rel=1e-6)
    assert repr(fitted("gaussian")).splitlines()[0] in done.output
