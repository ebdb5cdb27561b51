"""Stands in for the ``cython`` module where it is not installed: interpreted code asks it for one fact only."""

compiled = False
