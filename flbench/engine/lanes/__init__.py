"""Training in lanes: many clients at once, a row of one table each.

`vectorised` is the executor; `lanes` holds the job, its rows and places, `group` some of them
that make a step together, `training` their phases, and `step` the step itself. `hooks` runs what
clients and plugins add to it, `optimizer` updates all rows, and `convolution` and `evaluation` hold
what is computed otherwise in lanes.
"""
