"""What a site sends of a check: summaries with counts, and nothing that would point at a few of its rows."""

import dataclasses

__all__ = ["Group", "Quantity", "SiteCheck"]


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A quantity of a site's responses, and of responses that the fit simulates for the same rows."""

    name: str
    observed: float | None
    """None where it is one row's value, as a maximum is, or so few rows that it would point at them."""
    low: float
    expected: float
    high: float
    """The mean and the ends of the central 95% of what is simulated."""
    p: float | None
    """The share of simulations in which it is larger, ties counting half; near 0 or 1 the fit does not explain it."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Rows of a site that are alike: as many as `rows`, of which the fit expects a share and finds one."""

    rows: int
    expected: float
    observed: float | None
    """None where so few rows are of one kind that it would point at them."""


@dataclasses.dataclass(frozen=True)
class SiteCheck:
    """What a site sends; nothing but their number if it has fewer than five rows."""

    rows: int
    score: float | None = None
    """The mean log predictive density of its rows."""
    quantities: tuple[Quantity, ...] = ()
    calibration: tuple[Group, ...] = ()
    """Where the response is a class: groups of rows with like probabilities."""
    coverage: tuple[Group, ...] = ()
    """Otherwise: the share of rows inside central predictive intervals of these masses."""
    ranks: tuple[int | None, ...] = ()
    """And how many rows lie in each tenth of their predictive distribution."""
    censored: bool = False
    """Whether there are times without event, so that observed times are no fair sample of those simulated."""
