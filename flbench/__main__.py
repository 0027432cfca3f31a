"""`python -m flbench` is `flbench`."""

from flbench.cli import main

main()
