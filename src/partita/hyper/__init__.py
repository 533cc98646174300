"""Hyperparameters ε: their values, and how they are learned."""
