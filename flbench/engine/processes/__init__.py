"""Several processes: those of one run, and those that start quickly.

`fabric` starts Lightning Fabric; `process_group` connects the processes of a run and exchanges
their tensors; `shared_samples` holds the data set once for all of them; `workers` says which of
them prints, and how they end. `fork_server` starts processes that have imported torch already, and
`own_process` marks those that are flbench's own.
"""
