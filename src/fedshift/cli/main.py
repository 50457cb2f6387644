"""Entry point: runs a command, and turns errors into one line and an exit code."""

from __future__ import annotations

import os
import sys
import warnings

import click
from rich.console import Console

from fedshift.base.errors import FedshiftError
from fedshift.cli.commands import app


def main(args: list[str] | None = None) -> None:
    """Run ``fedshift``; exits with 0, 1 (some runs failed), 2 (one line says why) or 130."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for worker processes
    warnings.showwarning = lambda message, *_args, **_kwargs: _say(f"note: {message}")
    try:
        code = app(args=args, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        code = _show(error.format_message())
    except click.ClickException as error:
        code = _fail(error.format_message(), error.exit_code)
    except FedshiftError as error:
        code = _fail(str(error), 2)
    except (KeyboardInterrupt, click.Abort):
        code = _fail(
            "interrupted; the same command with --resume continues after the last round", 130
        )
    except BrokenPipeError:
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


def _show(text: str) -> int:
    Console().print(text, markup=False, highlight=False)
    return 2


def _fail(message: str, code: int) -> int:
    _say("error: " + " ".join(message.split()))
    return code


def _say(line: str) -> None:
    """One line on the error stream, however long."""
    Console(stderr=True, soft_wrap=True).print(line, markup=False, highlight=False)
