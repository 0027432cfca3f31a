"""Partitions: functions that divide the samples of a data set among the clients.

Each is an entry point of the group `flbench.partitions` with the signature
`(labels, domains, clients, rng, **parameters) -> Partition`: the label and the domain of each
sample, shape (m,), where domains are 0..D-1 or None, the number of clients and the source of
randomness. It raises UserError if the samples cannot be divided in its way.
"""
