"""The engine: local training and evaluation of models.

`options` holds what a run is computed with; `fabric` starts Lightning Fabric; `process_group` and
`processes` connect the processes of a run and exchange their tensors. `workspace` holds the one
module of a run. Executors train the clients of a stage: `sequential` one by one, `vectorised`
many at once (with `dropout`), `distributed` on several processes. `batches` fixes the order of
the samples, `batchnorm` what happens to BatchNorm statistics, `encoding` what clients send of
what they made, `cross_evaluation` evaluates models on clients' data, `communication` counts the
bits sent, and `clock` says how long clients take and which of them arrive in time.
"""
