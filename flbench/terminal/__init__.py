"""Output in the terminal: progress and tables."""
