"""Partitions: functions that divide the samples of a data set among the clients.

One partition per module; each is an entry point of the group `flbench.partitions` with the
signature `(labels, domains, clients, rng, **parameters) -> Partition`. `sharding` holds the code
that several of them use.
"""
