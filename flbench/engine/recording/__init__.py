"""Recorded steps: what torch computed once is computed again without the Python that called it.

`program` records the operations of a function of tensors and repeats them; `simplify` leaves out
those that change nothing, `functions` calls them in less time, and `cuda_graphs` launches them at
once on a GPU. Knows torch only: no client, no model, no round.
"""
