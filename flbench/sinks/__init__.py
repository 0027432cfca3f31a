"""Sinks: listeners that show or ship what a run measures. They decide nothing.

Entry points of group `flbench.sinks`: classes that are built without arguments and implement
`run_started`, `round_finished` and `run_finished`. A sink that fails is reported and the run goes
on.
"""
