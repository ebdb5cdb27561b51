"""Waiting, written once as generators, and the drivers that run it for threads and for tasks."""
