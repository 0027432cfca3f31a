"""Networks of single papers, functions as in `flbench.models` and found in the same way."""
