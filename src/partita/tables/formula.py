"""Formulas such as `died ~ age + C(ward) + bs(bmi, df=4) + offset(log(days)) + (1 | ward)`: what may stand in one.

A formula is code: formulaic evaluates whatever stands in it. One may come from a server or a file, so every formula is
read first, and only columns, numbers, texts, arithmetic and the functions listed here are admitted.
"""

import ast
import io
import itertools
import keyword
import re
import tokenize
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from partita.errors import MissingExtraError, SettingsError
from partita.inputs import described

try:
    import formulaic
except ModuleNotFoundError as error:  # pragma: no cover
    raise MissingExtraError("formulaic", "tables") from error

__all__ = ["ELEMENTWISE", "INTERCEPT", "STATEFUL", "Factor", "Formula", "GroupTerm", "column", "evaluated", "parsed"]

INTERCEPT = "Intercept"
"""The name of the column of ones."""

ELEMENTWISE: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "I": np.asarray,
}
"""Functions of one value. `I` protects arithmetic, as `I(age ** 2)`."""
STATEFUL = ("center", "scale", "bs")
"""Functions that depend on all rows; what they need of them is agreed among sites."""
_CATEGORICAL = "C"
_OFFSET = "offset"
_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
    ast.USub: np.negative,
    ast.UAdd: np.positive,
}
_FUNCTIONS = (*ELEMENTWISE, *STATEFUL, _CATEGORICAL, _OFFSET)
_SIGNS = ("~", "+", "-", "*", "/", "**", "^", ":", "(", ")", "[", "]", ",", "=", "%", "|", ".")
_AFTER_VALUE = (")", "]")
_MOST_PARENTHESES = 200
_QUOTED = re.compile(r"`([^`]*)`")
_GROUP_TERM = re.compile(r"\(([^()|]*)\|([^()|]*)\)")
_PLACED = "(| |)"
"""Stands for a group term while it is split off."""


class Factor(NamedTuple):
    """One factor of a term, such as `bs(bmi, df=4)`."""

    text: str
    """As formulaic knows it."""
    function: str
    """The function around it, if that is stateful or `C`; empty for a plain expression."""
    argument: ast.expr
    """What the function is of, or the expression itself."""
    options: Mapping[str, Any]
    """The function's other arguments, by name."""
    columns: tuple[str, ...]


class GroupTerm(NamedTuple):
    """Effects of groups of one level, such as `(1 + age | ward)`."""

    text: str
    intercept: bool
    slopes: tuple[str, ...]
    """The columns whose coefficients differ between groups."""
    columns: tuple[str, ...]
    """The columns that together say which group a row is in."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of effects."""
        return (*([INTERCEPT] if self.intercept else []), *self.slopes)

    @property
    def by(self) -> str:
        """The name of the grouping."""
        return ":".join(self.columns)


class Formula(NamedTuple):
    """A formula that has been admitted."""

    text: str
    response: Factor
    terms: Any
    """The terms of the right-hand side without offsets, a `formulaic.SimpleFormula`."""
    factors: tuple[Factor, ...]
    """The distinct factors of these terms."""
    offsets: tuple[Factor, ...]
    grouped: tuple[GroupTerm, ...]
    """The terms of effects of groups, the outermost first."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the right-hand side, each once."""
        every = (*self.factors, *self.offsets, *self.groups)
        return tuple(dict.fromkeys(name for factor in every for name in factor.columns))

    @property
    def groups(self) -> tuple[Factor, ...]:
        """The columns that say which groups a row is in, each once."""
        names = dict.fromkeys(name for term in self.grouped for name in term.columns)
        return tuple(Factor(name, "", column(name), {}, (name,)) for name in names)

    @property
    def has_intercept(self) -> bool:
        """Whether there is a term 1."""
        return any(str(term) == "1" for term in self.terms)


def parsed(text: str) -> Formula:
    """The formula with this text; raises a `SettingsError` where something else stands in it."""
    if not isinstance(text, str) or text.count("~") != 1 or not text.partition("~")[0].strip():
        raise SettingsError(f"Write the formula as 'response ~ predictors', not {described(text)}.")
    _check_tokens(text)
    bare, grouped = _split_off(text)
    try:
        found = formulaic.Formula(bare)
        left, right = list(found.lhs), list(found.rhs)
        texts = {factor.expr: factor for term in right for factor in term.factors if not _is_number(factor.expr)}
    except Exception as error:  # its parser raises whatever its pieces raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SettingsError(f"The formula {text!r:.100} cannot be read ({reason:.100}): check its syntax.") from None
    if len(left) != 1 or len(left[0].factors) != 1:
        raise SettingsError(f"The formula {text!r:.100} needs one response, on the left of ~.")
    response = _factor(left[0].factors[0])
    if response.function:
        raise SettingsError(f"The response {response.text!r} is a {response.function}(): give a column or its log.")
    offsets = [term for term in right if len(term.factors) == 1 and _is_offset(term.factors[0].expr)]
    terms = formulaic.formula.SimpleFormula([term for term in right if term not in offsets])
    factors = tuple(_factor(factor) for factor in texts.values() if not _is_offset(factor.expr))
    for factor in factors:
        if set(factor.columns) & set(response.columns):
            raise SettingsError(f"The response {response.text!r} also stands on the right of ~: remove it there.")
    plain = tuple(_offset(term.factors[0].expr) for term in offsets)
    _check_groups(grouped, response, factors)
    return Formula(text, response, terms, factors, plain, grouped)


def _split_off(text: str) -> tuple[str, tuple[GroupTerm, ...]]:
    """The formula without its terms of effects of groups, which formulaic does not know, and these, outermost first."""
    found = _GROUP_TERM.findall(text)
    if not found:
        return text, ()
    term = re.escape(_PLACED)
    left, right = _GROUP_TERM.sub(_PLACED, text).split("~")
    rest = re.sub(rf"^\s*{term}\s*(\+|$)", "", re.sub(rf"\+\s*{term}\s*(?=$|\+|-)", "", right))
    if _PLACED in rest:
        raise SettingsError(f"The formula {text!r:.100} has a group term that is not added: write it as + (1 | ward).")
    terms = [each for effects, groups in found for each in _group_terms(effects, groups)]
    terms.sort(key=lambda each: len(each.columns))
    for outer, inner in itertools.pairwise(terms):
        if not set(outer.columns) <= set(inner.columns):
            raise SettingsError(
                f"{outer.text:.100} and {inner.text:.100} are crossed effects, which are not offered: groups may lie "
                "within groups, as in (1 | hospital/ward)."
            )
    before = set[tuple[frozenset[str], str]]()
    for mine, name in ((each, name) for each in terms for name in each.names):
        if (frozenset(mine.columns), name) in before:
            raise SettingsError(f"{mine.text:.100} has the effect {name:.50} a second time: remove it there.")
        before.add((frozenset(mine.columns), name))
    return f"{left}~{rest if rest.strip() else ' 1'}", tuple(terms)


def _group_terms(effects: str, groups: str) -> list[GroupTerm]:
    """Group terms, by what stands on both sides of a bar: one for each level of groups within groups."""
    text = f"({effects.strip()} | {groups.strip()})"
    quoted = _QUOTED.sub(lambda found: _quoted(found[1]), groups)
    names = [part.strip() for part in re.split("[/:]", quoted)]
    if not all(map(str.isidentifier, names)) or len(set(names)) < len(names) or ("/" in quoted and ":" in quoted):
        raise SettingsError(
            f"The groups of {text:.100} cannot be read: give columns, as in (1 | ward), (1 | hospital/ward) or "
            "(1 | hospital:ward)."
        )
    parts = [_tree(part.strip()) for part in effects.split("+")]
    numbers = [part.value for part in parts if isinstance(part, ast.Constant)]
    slopes = tuple(_unquoted(part.id) for part in parts if isinstance(part, ast.Name))
    if len(numbers) + len(slopes) < len(parts) or not set(numbers) <= {0, 1} or len(numbers) > 1:
        raise SettingsError(f"The effects of {text:.100} must be 1 or 0 and columns, as in (1 + age | ward).")
    if numbers == [0] and not slopes:
        raise SettingsError(f"The group term {text:.100} has no effects: write (1 | {groups.strip():.50}).")
    columns = tuple(map(_unquoted, names))
    levels = [columns[: end + 1] for end in range(len(columns))] if "/" in quoted else [columns]
    return [GroupTerm(f"({effects.strip()} | {':'.join(each)})", 0 not in numbers, slopes, each) for each in levels]


def _check_groups(grouped: tuple[GroupTerm, ...], response: Factor, factors: tuple[Factor, ...]) -> None:
    """Refuses group terms that do not go with the others."""
    for term in grouped:
        if set(term.columns) & set(response.columns):
            raise SettingsError(f"The response {response.text!r} also stands on the right of ~: remove it there.")
        for name in term.slopes:
            if name not in [factor.text for factor in factors]:
                raise SettingsError(
                    f"{term.text:.100} has effects of {name!r}, which is no term by itself: add it, as in "
                    f"{name} + {term.text}."
                )


def _check_tokens(text: str) -> None:
    """Refuses what is not admitted before formulaic reads it, since its parser evaluates what is called as a function.

    So nothing but a listed name may stand before a parenthesis that calls it.
    """
    quoted = _QUOTED.sub(lambda found: _quoted(found[1]), text)
    try:
        tokens = [token for token in tokenize.generate_tokens(io.StringIO(quoted).readline) if token.string.strip()]
    except (tokenize.TokenError, SyntaxError, IndentationError):
        raise SettingsError(f"The formula {text!r:.100} cannot be read: check its parentheses and quotes.") from None
    before = ""
    for token in tokens:
        word = token.string
        called = word == "(" and (before in _AFTER_VALUE or before[-1:].isalnum() or before[-1:] in "_'\"")
        plain = token.type != tokenize.STRING or word[0] in "'\""
        known = token.type in (tokenize.NAME, tokenize.NUMBER, tokenize.STRING) or word in _SIGNS
        reserved = keyword.iskeyword(word) and word != "in"
        if not known or not plain or reserved or (called and before not in _FUNCTIONS):
            culprit = before + word if called else word
            raise SettingsError(
                f"The formula has {culprit!r:.100}, which is not admitted: use columns (in backticks if they are "
                f"not words), numbers, arithmetic and {', '.join(_FUNCTIONS)}."
            )
        before = word
    if quoted.count("(") > _MOST_PARENTHESES:
        raise SettingsError(f"The formula has more than {_MOST_PARENTHESES} parentheses: make it shorter.")


def evaluated(expression: ast.expr, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """The value of an admitted expression, row by row; columns are by their names as `_plain` has them."""
    match expression:
        case ast.Name(name):
            return np.asarray(columns[_unquoted(name)])
        case ast.Constant(value):
            return np.asarray(value)
        case ast.BinOp(left, operator, right):
            return _OPERATORS[type(operator)](evaluated(left, columns), evaluated(right, columns))
        case ast.UnaryOp(operator, operand):
            return _OPERATORS[type(operator)](evaluated(operand, columns))
        case ast.Call(ast.Name(name), [argument]):
            return ELEMENTWISE[name](evaluated(argument, columns))
    raise AssertionError(ast.dump(expression))


def column(name: str) -> ast.expr:
    """The expression that is a column."""
    return ast.Name(_quoted(name))


def _factor(found: Any) -> Factor:
    """One of formulaic's factors, admitted."""
    text = found.expr
    if found.eval_method is found.EvalMethod.LOOKUP:
        return Factor(text, "", column(text), {}, (text,))
    tree = _tree(text)
    function, argument, options = "", tree, dict[str, Any]()
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id in (*STATEFUL, _CATEGORICAL):
        function = tree.func.id
        if len(tree.args) != 1:
            raise SettingsError(f"Write {text!r} with one column, and what else it needs by name, as bs(bmi, df=4).")
        argument = tree.args[0]
        options = {str(given.arg): _constant(given.value, text) for given in tree.keywords}
    _admit(argument, text)
    return Factor(text, function, argument, options, _columns(argument))


def _offset(text: str) -> Factor:
    call = _tree(text)
    assert isinstance(call, ast.Call)
    if len(call.args) != 1 or call.keywords:
        raise SettingsError(f"Write {text!r} as offset of one expression, as offset(log(days)).")
    _admit(call.args[0], text)
    return Factor(text, "", call.args[0], {}, _columns(call.args[0]))


def _columns(expression: ast.expr) -> tuple[str, ...]:
    """The columns that stand in an admitted expression, each once."""
    names = [_unquoted(node.id) for node in ast.walk(expression) if isinstance(node, ast.Name)]
    return tuple(dict.fromkeys(name for name in names if name not in ELEMENTWISE))


def _admit(tree: ast.expr, text: str) -> None:
    """Refuses an expression of anything but columns, numbers, arithmetic and elementwise functions."""
    match tree:
        case ast.Name() | ast.Constant(int() | float()):
            return
        case ast.BinOp(left, operator, right) if type(operator) in _OPERATORS:
            _admit(left, text)
            _admit(right, text)
        case ast.UnaryOp(operator, operand) if type(operator) in _OPERATORS:
            _admit(operand, text)
        case ast.Call(ast.Name(name), [argument], []) if name in ELEMENTWISE:
            _admit(argument, text)
        case _:
            known = ", ".join(_FUNCTIONS)
            raise SettingsError(
                f"The formula has {text!r:.100}, which is not admitted: use columns, numbers, arithmetic and {known}."
            )


def _tree(text: str) -> ast.expr:
    """A factor as a syntax tree; columns in backticks become names."""
    try:
        return ast.parse(_QUOTED.sub(lambda found: _quoted(found[1]), text).strip("{}"), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SettingsError(f"The formula has {text!r:.100}, which cannot be read: check its syntax.") from None


def _quoted(name: str) -> str:
    """A name that Python can read, for a column with any name."""
    return name if name.isidentifier() else "_column_" + name.encode().hex()


def _unquoted(name: str) -> str:
    return bytes.fromhex(name.removeprefix("_column_")).decode() if name.startswith("_column_") else name


def _constant(value: ast.expr, text: str) -> Any:
    try:
        return ast.literal_eval(value)
    except ValueError:
        raise SettingsError(f"The formula has {text!r:.100}: give its options as numbers, texts or lists.") from None


def _is_offset(text: str) -> bool:
    return bool(re.fullmatch(rf"{_OFFSET}\(.*\)", text, re.DOTALL))


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"[\d.]+", text))
