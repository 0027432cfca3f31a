"""Artifacts: one folder with all that a reviewer of a table needs to run it again."""
