"""The command line; what a user can mend is one line and exit code 2."""

from fedshift.cli.main import main

__all__ = ["main"]
