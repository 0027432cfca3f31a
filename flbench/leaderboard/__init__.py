"""The leaderboard: a pure function of a folder of result files. Imports no torch.

Rows of one table share the suite's fingerprint: same settings, same data set.
"""
