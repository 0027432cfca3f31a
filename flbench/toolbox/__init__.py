"""Functions that method plugins share.

`aggregation` averages models, `similarity` computes scores, `clustering` makes groups from scores,
`elbow` finds the bend of a loss curve, `heterogeneity` measures how the clients' label
distributions differ, `personalisation` holds what methods with one model per client share, and
`asynchrony` holds what methods share whose server does not wait.
"""
