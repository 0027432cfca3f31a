"""`python -m flbench` is `flbench`."""

from flbench.cli.main import main

main()
