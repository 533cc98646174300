"""Tables and formulas: a data frame in, a posterior in the table's own units out. Needs the extra `tables`."""
