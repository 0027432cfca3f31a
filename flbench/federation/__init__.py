"""The federation: clients' samples, their splits, test sets and newcomers."""
