"""The tutorials' notebooks, made of their pages, and the output on the pages, made by running them.

    python scripts/tutorials.py                   # write docs/tutorials/*.ipynb
    python scripts/tutorials.py --run tables      # run a page, paste what its commands said

A page has blocks of bash and python, and below a command what it said, as text. A comment above a
block says who runs it: ``with PACS`` and ``long`` only when output is pasted, ``without PACS`` in
tests and in notebooks, ``not in the notebook``; and above text, how much of the output is shown.
Notebooks hold no output: ``scripts/docs_hooks.py`` executes them when the documentation is built.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
NOTEBOOKS = ("images", "tables", "texts")
PORTS = ("8000", "9000")  # of servers on the pages
DAEMONS = (["serve"], ["server", "start"], ["site", "start"])  # commands that go on
BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^>\n]+) -->\n)?```(?P<kind>\w+)\n(?P<body>.*?)^```\n", re.M | re.S
)
PART = re.compile(r"(first|last) (\d+) lines?")
HIDDEN = {"notebook": ("with PACS", "long", "not in the notebook"), "test": ("with PACS", "long"),
          "page": ("without PACS",)}  # fmt: skip
MAGIC = """\
# `%fedshift ...` is the command `fedshift ...`, run inside this notebook.
import shlex

from IPython import get_ipython

from fedshift.cli import main


def fedshift(line):
    try:
        main(shlex.split(line))
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"it ended with code {end.code}") from None


get_ipython().register_magic_function(fedshift)"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    kind: str
    body: str
    mark: str  # who runs it
    part: str  # of an output, what is shown
    span: tuple[int, int]  # of its body

    @property
    def commands(self) -> list[str]:
        """The lines of a bash block; those that end in a backslash are joined."""
        return re.sub(r"\s*\\\n\s*", " ", self.body).strip().splitlines()

    @property
    def setup(self) -> bool:
        """Whether it installs, which whoever runs the page has done."""
        return self.body.startswith("pip install")


def blocks_of(text: str, whose: str = "page") -> Iterator[Block]:
    """The blocks that somebody runs or reads."""
    for found in BLOCK.finditer(text):
        block = block_of(found)
        if block.mark not in HIDDEN[whose]:
            yield block


def block_of(found: re.Match[str]) -> Block:
    """A block, whose comment may name who runs it, how much of an output is shown, or both."""
    words = (found["mark"] or "").split(", ")
    part = words.pop() if PART.fullmatch(words[-1]) else ""
    return Block(found["kind"], found["body"], "".join(words), part, found.span("body"))


# notebooks


def notebook_of(name: str) -> str:
    """The notebook of a page, as the text of its file."""
    text = (FOLDER / f"{name}.md").read_text()
    cells, at = [_cell(0, "code", MAGIC)], 0
    for found in BLOCK.finditer(text):
        cells += _prose(len(cells), text[at : found.start()])
        at = found.end()
        block = block_of(found)
        if block.mark == "with PACS" or block.kind == "text":
            continue
        if block.setup or block.mark in HIDDEN["notebook"]:
            cells.append(_cell(len(cells), "markdown", f"```bash\n{block.body}```"))
        else:
            cells.append(_cell(len(cells), "code", _code(block)))
    cells += _prose(len(cells), text[at:])
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def _prose(number: int, text: str) -> list[dict[str, Any]]:
    shown = re.sub(r"<!--.*?-->\n*", "", text).strip()
    return [_cell(number, "markdown", shown)] if shown else []


def _code(block: Block) -> str:
    if block.kind == "python":
        return block.body.strip()
    return "\n".join(re.sub(r"^fedshift ", "%fedshift ", re.sub(r"^python ", "%run ", line))
                     for line in block.commands)  # fmt: skip


def _cell(number: int, kind: str, text: str) -> dict[str, Any]:
    cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    return cell | {"source": text.splitlines(keepends=True)}


# pages


def pasted(name: str) -> str:
    """A page with what its commands say now."""
    text = (FOLDER / f"{name}.md").read_text()
    said = ""
    changes: list[tuple[tuple[int, int], str]] = []
    with tempfile.TemporaryDirectory() as folder:
        shell = Shell(Path(folder))
        try:
            for block in blocks_of(text):
                if block.kind == "text":
                    changes.append((block.span, shown(said, block.part)))
                elif not block.setup:
                    print(block.body.strip().splitlines()[0], flush=True)
                    said = shell.run(block)
        finally:
            shell.close()
    for (start, end), new in reversed(changes):
        text = text[:start] + new + text[end:]
    return text


def shown(said: str, part: str) -> str:
    """The lines of an output that a page shows, without spaces at their ends."""
    lines = [line.rstrip() for line in said.strip().splitlines()]
    if found := PART.fullmatch(part):
        n = int(found[2])
        lines = lines[:n] if found[1] == "first" else lines[-n:]
    return "".join(f"{line}\n" for line in lines)


class Shell:
    """Runs the blocks of a page in a folder; servers go on until it is closed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {port: str(free_port()) for port in PORTS}
        self.env = os.environ | {"FEDSHIFT_HOME": str(folder / "home"), "COLUMNS": "100"}
        self.servers: list[subprocess.Popen[bytes]] = []
        (folder / "scripts").symlink_to(Path(__file__).parent)

    def run(self, block: Block) -> str:
        """Returns what the commands wrote to standard output, with the page's ports."""
        if block.kind == "python":
            return self.python(block.body)
        said = "".join(self.command(self.words(line)) for line in block.commands)
        for shown_port, real in self.ports.items():
            said = said.replace(f":{real}", f":{shown_port}").replace(
                f"port {real}", f"port {shown_port}"
            )
        return said.replace(f"{self.folder}/", "").replace(str(self.folder), ".")

    def words(self, line: str) -> list[str]:
        """A command as words, with real ports; a pattern becomes the path that it fits."""
        for shown_port, real in self.ports.items():
            line = line.replace(shown_port, real)
        words = shlex.split(line, comments=True)
        return [str(next(self.folder.glob(w)).relative_to(self.folder)) if w.endswith("/*") else w
                for w in words]  # fmt: skip

    def command(self, words: list[str]) -> str:
        """One command; a server is waited for until it listens, if the page says where."""
        if words[0] != "fedshift" or not any(words[1:][: len(d)] == d for d in DAEMONS):
            return self.call(words)
        whole = [sys.executable, "-m", *words]
        self.servers.append(
            subprocess.Popen(whole, cwd=self.folder, env=self.env, stdout=subprocess.DEVNULL)
        )
        if words[1] != "site":
            wait_for(int(self.ports["8000" if words[1] == "serve" else "9000"]))
        return ""

    def python(self, code: str) -> str:
        """The code of a block."""
        return self.call(["python", "-c", code])

    def call(self, words: list[str]) -> str:
        """Run one process to its end."""
        own = {"fedshift": [sys.executable, "-m", "fedshift"], "python": [sys.executable]}
        whole = [*own.get(words[0], words[:1]), *words[1:]]
        done = subprocess.run(
            whole, cwd=self.folder, env=self.env, stdout=subprocess.PIPE, check=True
        )
        return done.stdout.decode()

    def close(self) -> None:
        """End the servers, the last one first."""
        for server in reversed(self.servers):
            server.terminate()
            server.wait(60)


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_for(port: int, seconds: float = 600) -> None:
    """Until somebody listens."""
    ends = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.2)
        else:
            return


def execute(name: str, out: Path) -> None:
    """Run a notebook in a folder of its own, and write it with its output."""
    import nbformat  # noqa: PLC0415  of the extra docs
    from nbclient import NotebookClient  # noqa: PLC0415

    book = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"FEDSHIFT_HOME": f"{folder}/home", "OMP_NUM_THREADS": "1"}
        client = NotebookClient(book, timeout=600, resources={"metadata": {"path": folder}})
        client.execute(env=env)
    nbformat.write(book, out)


def main() -> None:
    """Write notebooks, or run a page."""
    told = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    told.add_argument("--run", metavar="NAME", help="a page whose output is made anew")
    name = told.parse_args().run
    if name:
        (FOLDER / f"{name}.md").write_text(pasted(name))
    for one in NOTEBOOKS:
        (FOLDER / f"{one}.ipynb").write_text(notebook_of(one))


if __name__ == "__main__":
    main()
