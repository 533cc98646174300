"""A spec goes through JSON unchanged, and round 0 goes in stages of plain data."""

import json

import numpy as np
import pytest

from partita.errors import InputError
from partita.tables.agreement import Agreement, agreed
from partita.tables.reading import frame_of, sites_of
from partita.tables.spec import Settings, Spec
from tables.test_design import FRAME

FORMULA = "age ~ sex*scale(bmi) + bs(bmi, df=4) + C(ward, reference='c') + offset(log(bmi))"


def through_json(contents):
    return json.loads(json.dumps(contents))


@pytest.fixture(scope="module")
def sites():
    return sites_of(frame_of(FRAME), Settings(FORMULA).columns, "site")


@pytest.fixture(scope="module")
def spec(sites):
    return Spec(Settings(FORMULA, prior="normal(0, 1)"), agreed(Settings(FORMULA).begun, sites))


def test_it_goes_through_json(spec, sites):
    again = Spec.from_dict(through_json(spec.to_dict()))
    assert again.to_dict() == spec.to_dict()
    assert again.settings == spec.settings
    for one, other in zip(again.table(sites[0]), spec.table(sites[0]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_stages_through_json_give_the_same_design(spec, sites):
    known, exchanges = Settings(FORMULA).begun, 0
    while not known.complete:
        sent = through_json(known.to_dict())
        answers = [through_json(Agreement.from_dict(sent).answer(site)) for site in sites]
        known, exchanges = known.taken(answers), exchanges + 1
    assert exchanges == 3
    assert known.to_dict() == spec.agreement.to_dict()


def test_no_answer_grows_with_the_rows(sites):
    known = Settings(FORMULA).begun
    twice = [
        site._replace(columns={n: np.tile(v, 9) for n, v in site.columns.items()}, rows=9 * site.rows) for site in sites
    ]
    while not known.complete:
        for site, more in zip(sites, twice, strict=True):
            assert _numbers_in(known.answer(more)) == _numbers_in(known.answer(site))
        known = known.taken([known.answer(site) for site in sites])


def _numbers_in(contents):
    """How many numbers and texts an answer holds."""
    if isinstance(contents, dict):
        return sum(_numbers_in(value) for value in contents.values())
    return sum(map(_numbers_in, contents)) if isinstance(contents, list) else 1


def _damaged(contents, *path):
    """Contents without what lies at a path."""
    found = through_json(contents)
    place = found
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return found


@pytest.mark.parametrize(
    "path",
    [
        ("settings",),
        ("settings", "formula"),
        ("design",),
        ("design", "mean"),
        ("design", "mean", 0),
        ("design", "splines", "bs(bmi, df=4)", "low"),
        ("design", "summary", "columns", 0),
        ("response", "columns"),
    ],
)
def test_a_damaged_spec_is_refused(spec, path):
    with pytest.raises(InputError):
        Spec.from_dict(_damaged(spec.to_dict(), *path))


@pytest.mark.parametrize(
    "answer", [{}, {"columns": []}, {"columns": 3}, {"columns": [{"name": "age"}], "labels": None}]
)
def test_a_damaged_answer_is_refused(answer):
    with pytest.raises(InputError):
        Settings("age ~ bmi").begun.taken([answer])


def test_a_formula_in_a_spec_is_admitted_before_it_is_read(spec):
    contents = through_json(spec.to_dict())
    contents["rows"]["asked"] = contents["design"]["formula"] = contents["settings"]["formula"] = (
        "age ~ {__import__('os').getpid()}"
    )
    with pytest.raises(InputError, match="not admitted"):
        Spec.from_dict(contents)
