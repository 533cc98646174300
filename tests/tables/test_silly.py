"""Thirty silly inputs: each is refused in one sentence, or fitted with a note that says what was done.

The same by library and by command line.
"""

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

import partita as pt
from partita.cli import app
from partita.errors import InputError


def rows(size=60, seed=0):
    generator = np.random.default_rng(seed)
    age = generator.normal(60, 10, size)
    return pandas.DataFrame(
        {
            "died": (generator.random(size) < 0.4).astype(int),
            "age": age,
            "sex": generator.choice(["f", "m"], size),
            "visits": generator.poisson(2, size),
            "hospital": np.array(["Hull", "Leeds", "York"])[np.arange(size) % 3],
        }
    )


FRAME = rows()
NOUGHT = np.zeros(len(FRAME))

REFUSED = {
    "an unknown column": ({"formula": "died ~ height"}, "no column 'height'"),
    "the response among the predictors": ({"formula": "died ~ died + age"}, "right of ~"),
    "one level": ({"formula": "died ~ sex", "frame": {"sex": "f"}}, "one level"),
    "all missing": ({"frame": {"age": np.nan}}, "missing value"),
    "a text in numbers": ({"formula": "died ~ log(age)", "frame": {"age": [*map(str, range(59)), "sixty"]}}, "texts"),
    "three labels": ({"formula": "sex ~ age", "frame": {"sex": ["f", "m", "x"] * 20}}, "two are needed"),
    "one label": ({"formula": "sex ~ age", "frame": {"sex": "f"}}, "two are needed"),
    "labels for counts": ({"formula": "sex ~ age", "family": "poisson"}, "numbers"),
    "counts below 0": ({"formula": "visits ~ age", "family": "poisson", "frame": {"visits": NOUGHT - 1}}, "0 up"),
    "counts that are not whole": ({"formula": "age ~ visits", "family": "poisson"}, "whole"),
    "two for one": ({"formula": "visits ~ age"}, "0 or 1"),
    "10,000 levels": ({"formula": "died ~ name", "frame": "many"}, "identifier"),
    "two columns of one name": ({"frame": "twice"}, "same name"),
    "a constant column": ({"frame": {"age": 60.0}}, "same in every row"),
    "a constant response": (
        {"formula": "age ~ visits", "family": "gaussian", "frame": {"age": 60.0}},
        "nothing to explain",
    ),
    "code in the formula": ({"formula": "died ~ __import__('os').getpid()"}, "not admitted"),
    "code in braces": ({"formula": "died ~ {open('/etc/passwd')}"}, "not admitted"),
    "code on the left": ({"formula": "print(died) ~ age"}, "not admitted"),
    "no formula": ({"formula": ""}, "response ~ predictors"),
    "no response": ({"formula": "~ age"}, "response ~ predictors"),
    "two tildes": ({"formula": "died ~ age ~ sex"}, "response ~ predictors"),
    "no parenthesis": ({"formula": "died ~ log(age"}, "cannot be read"),
    "the logarithm of nothing": ({"formula": "died ~ log(none)", "frame": {"none": NOUGHT}}, "not finite"),
    "an unknown family": ({"family": "cauchy"}, "cauchy"),
    "no sd": ({"prior": "normal(0, 0)"}, "scale of a prior must be finite and above 0"),
    "a prior of nothing": ({"prior": "horseshoe(0.1); weight: normal(0, 1)"}, "no coefficient named 'weight'"),
    "an unknown reference": ({"formula": "died ~ C(sex, reference='x')"}, "which no row has"),
    "no site column": ({"sites": "town"}, "no column 'town'"),
    "a site without a name": ({"frame": {"hospital": [None, *["York"] * 59]}}, "missing in some rows"),
    "negative weights": ({"weights": "less", "frame": {"less": NOUGHT - 1}}, "from 0 up"),
    "an infinite value": ({"frame": {"age": [np.inf, *range(59)]}}, "not finite"),
    "no rows": ({"frame": "empty"}, "no rows"),
    "a label that is not there": ({"formula": "sex ~ age", "positive": "M"}, "no label 'M'"),
}

FITTED = {
    "labels Y and N": (
        {"formula": "ill ~ age", "frame": {"ill": np.where(FRAME.died, "Y", "N")}},
        "'Y' where it counts",
    ),
    "perfect separation": ({"formula": "died ~ sign", "frame": {"sign": FRAME.died - 0.5}}, "The prior shapes sign"),
    "a site without events": ({"frame": {"died": np.where(FRAME.hospital == "York", 0, FRAME.died)}}, "60 rows of 3"),
    "a site with one row": ({"frame": {"hospital": ["Hull", *["York"] * 59]}}, "60 rows of 2 sites"),
    "a name with spaces": ({"formula": "died ~ `âge ans`", "frame": {"âge ans": FRAME.age}}, "60 rows"),
    "a name that is code": (
        {"formula": "died ~ `__import__('os')`", "frame": {"__import__('os')": FRAME.age}},
        "60 rows",
    ),
    "missing values": (
        {"frame": {"age": [np.nan] * 7 + [60.0, 70.0, 65.5] * 17 + [50.0, 80.0]}},
        "7 rows with missing",
    ),
    "sites that are numbers": ({"frame": {"hospital": [1.0, 2.0] * 30}}, "60 rows of 2 sites"),
    "true and false": ({"frame": {"died": FRAME.died == 1}}, "'True' where it counts as 1"),
    "a column twice": ({"formula": "died ~ age + age"}, "60 rows"),
}


def table(change):
    match change:
        case "many":
            size = 10_000
            return pandas.DataFrame(
                {"died": np.arange(size) % 2, "name": [f"n{i}" for i in range(size)], "hospital": "a"}
            )
        case "twice":
            return pandas.concat([FRAME, FRAME[["age"]]], axis=1)
        case "empty":
            return FRAME.head(0)
    return FRAME.assign(**change)


def asked(changed):
    given = {"formula": "died ~ age", "family": "bernoulli", "sites": "hospital", "frame": {}} | changed
    return given.pop("formula"), table(given.pop("frame")), given


def command(tmp_path, changed):
    formula, frame, options = asked(changed)
    path = tmp_path / "patients.csv"
    frame.to_csv(path, index=False)
    flags = [word for name, value in options.items() for word in (f"--{name}", value)]
    return CliRunner().invoke(app, ["fit", *flags, "--", formula, str(path)])


@pytest.mark.parametrize(("changed", "said"), REFUSED.values(), ids=REFUSED)
def test_the_library_refuses_in_one_sentence(changed, said):
    formula, frame, options = asked(changed)
    with pytest.raises(InputError, match=said) as refused:
        pt.fit(formula, frame, **options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "name", [name for name in REFUSED if name != "two columns of one name"]
)  # in a file it is renamed
def test_the_command_refuses_in_one_sentence(name, tmp_path):
    changed, said = REFUSED[name]
    found = command(tmp_path, changed)
    assert isinstance(found.exception, SystemExit | InputError), found.exception
    words = " ".join((found.output + str(found.exception)).split())
    assert said in words, words
    assert "Traceback" not in words


@pytest.mark.parametrize(("changed", "said"), FITTED.values(), ids=FITTED)
def test_the_rest_is_fitted_and_told(changed, said, tmp_path):
    formula, frame, options = asked(changed)
    fit = pt.fit(formula, frame, **options)
    assert said in " ".join(fit.notes)
    assert fit.result.status.value == "converged"
    assert said in " ".join(command(tmp_path, changed).output.split())
