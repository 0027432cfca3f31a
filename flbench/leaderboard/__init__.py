"""The leaderboard: a pure function of a folder of result files. Imports no torch.

Rows of one table share the suite's fingerprint: same settings, same data set. `rows` groups
results, `stats` says what they can tell apart, `entry` and `table` hold everything as data, and
`pages`, `drawings` and `board` make files of it.
"""
