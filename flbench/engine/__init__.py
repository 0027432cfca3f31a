"""The engine: local training and evaluation on one shared Fabric.

`workspace` holds the one module of a run; `sequential` trains the clients of a stage one by one;
`cross_eval` judges models on clients' data; `ledger` counts what crosses.
"""
