"""`python -m backstory`."""

from backstory.cli.main import program

program()
