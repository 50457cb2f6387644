"""Entry point: runs a command, and turns errors into one line and an exit code.

The library's errors speak Python; here the flags that mend them are added. Its log is rendered on
the error stream, one line each.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings

import click

from fedshift.base.errors import FedshiftError
from fedshift.base.logs import log, printable
from fedshift.base.termination import Termination
from fedshift.cli.commands import app
from fedshift.cli.options import flag

INTERRUPTED = 130


def main(args: list[str] | None = None) -> None:
    """Run ``fedshift``; exits with 0, 1 (some runs failed), 2 (one line says why), 130 or 143."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for worker processes
    warnings.showwarning = lambda message, *_args, **_kwargs: _say(f"note: {message}")
    _render_log()
    termination = Termination()
    termination.install()
    try:
        code = app(args=args, standalone_mode=False)
        if code == INTERRUPTED:  # how typer tells it
            raise KeyboardInterrupt
    except click.exceptions.NoArgsIsHelpError as error:
        code = _show(error.format_message())
    except click.ClickException as error:
        code = _fail(error.format_message(), error.exit_code)
    except FedshiftError as error:
        flags = ", ".join(map(flag, error.options))
        code = _fail(f"{error} ({flags})" if flags else str(error), 2)
    except (KeyboardInterrupt, click.Abort):
        what, code = ("terminated", 143) if termination.asked else ("interrupted", INTERRUPTED)
        _fail(f"{what}; the same command with --resume continues after the last round", code)
    except BrokenPipeError:
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


class NoteHandler(logging.Handler):
    """A line on the error stream for each warning of the library."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record."""
        kind = "error" if record.levelno >= logging.ERROR else "note"
        _say(f"{kind}: {' '.join(record.getMessage().split())}")


def _render_log() -> None:
    """Let the library's warnings show; what it tells of rounds is drawn as progress instead."""
    if not any(isinstance(handler, NoteHandler) for handler in log.handlers):
        log.addHandler(NoteHandler(logging.WARNING))
        log.propagate = False


def _show(text: str) -> int:
    from rich.console import Console

    Console().print(text, markup=False, highlight=False)
    return 2


def _fail(message: str, code: int) -> int:
    _say("error: " + " ".join(message.split()))
    return code


def _say(line: str) -> None:
    """One line on the error stream, however long."""
    from rich.console import Console

    Console(stderr=True, soft_wrap=True).print(printable(line), markup=False, highlight=False)
