"""The engine: local training and evaluation on one shared Fabric.

`workspace` holds the one module of a run; `sequential` trains the clients of a stage one by one,
`vectorised` many at once (`lanes`, `dropout`), `sharded` on several processes (`ranks`, `devices`);
`batches` fixes what they train on; `cross_eval` judges models on clients' data; `ledger` counts
what crosses.
"""
