"""`python -m kvbench` is the `kvbench` command."""

from kvbench.cli import main

main()
