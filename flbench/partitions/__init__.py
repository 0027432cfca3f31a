"""Built-in partitions; each is an entry point of the group `flbench.partitions`."""
