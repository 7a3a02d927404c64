"""`python -m lngrad` is the command `lngrad`."""

from lngrad.cli.main import main

main()
