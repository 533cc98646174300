"""Compilation, random numbers, and choices between pytrees."""
