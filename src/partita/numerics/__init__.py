"""Compilation, random numbers, and pytrees."""
