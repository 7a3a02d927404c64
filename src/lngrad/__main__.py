"""`python -m lngrad` is the command `lngrad`."""

from lngrad.cli import main

main()
