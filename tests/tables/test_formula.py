"""Formulas: what is admitted, and that nothing else is ever evaluated."""

import ast

import numpy as np
import pytest

from partita.errors import SettingsError
from partita.tables.formula import ELEMENTWISE, STATEFUL, evaluated, parsed

ADMITTED = {
    "y ~ age": ["age"],
    "y ~ 0 + age + sex": ["age", "sex"],
    "log(y) ~ I(age ** 2) + sqrt(-age + 2)": ["age"],
    "y ~ age*sex - age:sex": ["age", "sex"],
    "y ~ C(ward, reference='b') + bs(log(bmi), df=5) + center(age)": ["ward", "bmi", "age"],
    "y ~ `heart rate` + C(`Größe`) + offset(log(days))": ["heart rate", "Größe", "days"],
    "y ~ 1": [],
}
REFUSED = (
    "y ~ {__import__('os').getpid()*age}",
    "y ~ I(__import__('os').getpid())",
    "y ~ I((lambda: 1)())",
    "y ~ I([n for n in age][0])",
    "y ~ np.exp(age)",
    "y ~ I(age.real)",
    "y ~ (lambda: 1)()",
    "__import__('os').getpid() ~ age",
    "[print][0](1) ~ age",
    "I(__import__('os').getpid()) ~ age",
    "y ~ 'x'.join(age)",
    "y ~ {age}",
    "y ~ age; sex",
    "y ~ age # note",
    "y ~ 'age",
    "y ~ I(age if age else 1)",
    "y ~ I(f'{age}')",
    "y ~ lag(age)",
    "y ~ hashed(age, 3)",
    "y ~ Q('age')",
    "y ~ C(age, contr.sum)",
    "y ~ C(age, reference=open('x'))",
    "y ~ bs(age, df=f(4))",
    "y ~ offset(eval('1'))",
    "eval('y') ~ age",
    "y ~ eval('age'):sex",
    "y ~ I(age @ age)",
    "y ~ I('age')",
    "y ~ bs(bs(age, df=4), df=4)",
    "y ~ center(C(age))",
    "y ~ age + y",
    "y ~ log(y)",
    "y + z ~ age",
    "~ age",
    "age",
    "y ~ age ~ sex",
    "y ~ a | b",
    "y ~ age + (",
    "y ~ .",
    "",
    "C(y) ~ age",
)


@pytest.mark.parametrize("text", ADMITTED)
def test_formulas_of_columns_and_listed_functions_are_admitted(text):
    assert list(parsed(text).columns) == ADMITTED[text]


@pytest.mark.parametrize("text", REFUSED)
def test_anything_else_is_refused_in_one_sentence_and_never_evaluated(text, monkeypatch):
    """Not even by formulaic's parser, which evaluates what is called on the left of ~ to see whether it has a state."""
    evaluate = eval
    names = (*ELEMENTWISE, *STATEFUL, "C", "offset")

    def only_names(code, *rest):
        assert set(code.co_names) <= set(names), code.co_names
        assert not code.co_consts or all(not hasattr(const, "co_code") for const in code.co_consts)
        return evaluate(code, *rest)

    monkeypatch.setattr("builtins.eval", only_names)
    with pytest.raises(SettingsError) as refused:
        parsed(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", [None, 3, ["y ~ x"], b"y ~ x", "y ~ " + "(" * 500 + "x" + ")" * 500])
def test_what_is_no_formula_is_refused(text):
    with pytest.raises(SettingsError):
        parsed(text)


def test_expressions_have_the_values_of_numpy():
    age, bmi = np.array([1.0, 2.0, 4.0]), np.array([3.0, 5.0, 7.0])
    tree = ast.parse("log(age) * 2 - I(bmi ** 2) / -age", mode="eval").body
    np.testing.assert_array_equal(evaluated(tree, {"age": age, "bmi": bmi}), np.log(age) * 2 - bmi**2 / -age)


def test_a_column_may_have_any_name():
    formula = parsed("y ~ I(`a b` * `__import__('os')`)")
    assert formula.columns == ("a b", "__import__('os')")
    columns = {"a b": np.array([2.0]), "__import__('os')": np.array([3.0])}
    np.testing.assert_array_equal(evaluated(formula.factors[0].argument, columns), [6.0])
