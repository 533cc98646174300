"""Partitioned variational inference: many owners of data fit one Bayesian model without pooling their rows."""
