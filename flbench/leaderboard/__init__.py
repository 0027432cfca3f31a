"""The leaderboard: a pure function of a folder of result files. Imports no torch."""
