"""The engine: local training and evaluation of models.

`options` holds what a run is computed with, and `workspace` the one module of a run. Executors
train the clients of a stage: `sequential` one by one, `lanes` many at once (from steps that
`recording` keeps), `distributed` on several processes (`processes`). `batches` fixes the order of
the samples, `batchnorm` what happens to BatchNorm statistics, `encoding` what clients send of what
they made, `model_evaluation` evaluates a model on clients' data and `cross_evaluation` many,
`ledger` counts the bits sent, and `clock` says how long clients take and which of them arrive in
time. `machine` settles what processor and memory do below torch.
"""
