"""Sinks: listeners that show or store what a run measures. They never change a run.

Entry points of group `flbench.sinks`: classes that are built without arguments and implement
`run_started`, `round_finished` and `run_finished`. If a sink fails, the run warns and
continues.
"""
