"""The mutants of methods/, privacy/ and core/aggregate.py, by the operators of mutmut 3.

``scripts/mutation.py`` draws from them. What is not code to be tested is left out: annotations,
decorators, docstrings, and the text of errors and of settings' help.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider
from mutmut.node_mutation import mutation_operators, operator_string

ROOT = Path(__file__).resolve().parent.parent
SEED = 16
NEVER = {"len", "isinstance", "TypeVar", "cast", "register"}  # as mutmut, and what only registers


def sources() -> list[str]:
    """The files to mutate, relative to src/fedshift."""
    base = ROOT / "src" / "fedshift"
    found = [base / "core" / "aggregate.py", *base.glob("privacy/*.py")]
    found += base.glob("methods/**/*.py")
    return sorted(str(f.relative_to(base)) for f in found if f.name != "__init__.py")


@dataclass(frozen=True)
class Place:
    """One mutant: a node of a file and what replaces it."""

    file: str
    key: str  # holds while other lines of the file change
    module: cst.Module
    old: cst.CSTNode
    new: cst.CSTNode
    lines: tuple[int, int]
    whole: tuple[int, int]  # lines whose tests may see it: a class for its attributes
    function: str  # the outermost function that it is in; empty for attributes and defaults

    @property
    def text(self) -> str:
        """The file with this mutant."""
        return self.module.deep_replace(self.old, self.new).code  # type: ignore[arg-type]


class Finder(cst.CSTVisitor):
    """Collects the mutants of a module."""

    METADATA_DEPENDENCIES = (PositionProvider, ParentNodeProvider)

    def __init__(self, file: str, module: cst.Module) -> None:
        self.file, self.module = file, module
        self.found: list[Place] = []
        self.stack: list[cst.ClassDef | cst.FunctionDef] = []
        self.seen: Counter[str] = Counter()

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Mutate a node, and go on to its children unless it is not code to be tested."""
        if skipped(node):
            return False
        if isinstance(node, cst.ClassDef | cst.FunctionDef):
            self.stack.append(node)
        for kind, operator in mutation_operators:
            if isinstance(node, kind) and not (operator is operator_string and self.prose(node)):
                for changed in operator(node):
                    self.add(node, changed)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        """Leave a class or function."""
        if self.stack and self.stack[-1] is original_node:
            self.stack.pop()

    def prose(self, node: cst.CSTNode) -> bool:
        """Whether a string is the text of an error or of a setting's help."""
        while not isinstance(node, cst.Module):
            if isinstance(node, cst.Raise) or is_call(node, "setting"):
                return True
            node = self.get_metadata(ParentNodeProvider, node)
        return False

    def add(self, node: cst.CSTNode, changed: cst.CSTNode) -> None:
        """Keep a mutant, unless it changes nothing, or only a setting's help."""
        old, new = self.module.code_for_node(node), self.module.code_for_node(changed)
        if old == new or (is_call(node, "setting") and texts(node) != texts(changed)):
            return
        scope = ".".join(one.name.value for one in self.stack)
        lines = self.lines(node)
        inner = self.stack[-1] if self.stack else None
        whole = lines if isinstance(inner, cst.FunctionDef) else self.lines(inner or self.module)
        name = f"{self.file}::{scope}::{old} -> {new}"
        key = f"{name}::{self.seen[name]}"  # the number tells equal changes of a function apart
        self.seen[name] += 1
        self.found.append(
            Place(self.file, key, self.module, node, changed, lines, whole, self.function(node))
        )

    def function(self, node: cst.CSTNode) -> str:
        """Qualified name of the outermost function around a node; empty for a default value."""
        while not isinstance(node, cst.Module):
            if isinstance(node, cst.Param):
                return ""
            node = self.get_metadata(ParentNodeProvider, node)
        inside = [isinstance(one, cst.FunctionDef) for one in self.stack]
        outer = inside.index(True) + 1 if True in inside else 0
        return ".".join(one.name.value for one in self.stack[:outer])

    def lines(self, node: cst.CSTNode) -> tuple[int, int]:
        """First and last line."""
        at = self.get_metadata(PositionProvider, node)
        return at.start.line, at.end.line


def is_call(node: cst.CSTNode, name: str) -> bool:
    """Whether ``node`` is a call of ``name``."""
    return isinstance(node, cst.Call) and getattr(node.func, "value", None) == name


def texts(node: cst.CSTNode) -> list[str]:
    """The positional strings of a call, None where one was replaced."""
    args = node.args if isinstance(node, cst.Call) else ()
    plain = [a.value for a in args if not a.keyword]
    return [v.value for v in plain if isinstance(v, cst.SimpleString)]


def skipped(node: cst.CSTNode) -> bool:
    """As mutmut skips, without its rule for what is decorated; also docstrings and type checks."""
    if isinstance(node, cst.Annotation | cst.Decorator | cst.Import | cst.ImportFrom):
        return True
    if isinstance(node, cst.Call) and getattr(node.func, "value", None) in NEVER:
        return True
    if isinstance(node, cst.Param) and node.default is not None:
        return not isinstance(node.default, cst.Name | cst.BaseNumber | cst.BaseString)
    if isinstance(node, cst.If) and getattr(node.test, "value", None) == "TYPE_CHECKING":
        return True
    return isinstance(node, cst.Expr) and isinstance(
        node.value, cst.SimpleString | cst.ConcatenatedString
    )


def plan(files: Sequence[str] | None = None) -> list[Place]:
    """All mutants in the order of the draw: any beginning is a sample, stratified by file.

    Each file's mutants are shuffled and spread evenly over the whole order. With ``files``, those
    of some files only, in no particular order.
    """
    rng = random.Random(SEED)
    placed: list[tuple[float, Place]] = []
    for file in sources() if files is None else files:
        wrapper = MetadataWrapper(cst.parse_module((ROOT / "src" / "fedshift" / file).read_text()))
        finder = Finder(file, wrapper.module)
        wrapper.visit(finder)
        rng.shuffle(finder.found)
        start = rng.random()
        placed += [((i + start) / len(finder.found), m) for i, m in enumerate(finder.found)]
    return [place for _, place in sorted(placed, key=lambda pair: pair[0])]
