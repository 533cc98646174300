"""Compilation, and random numbers."""
