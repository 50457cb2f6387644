"""Registries: builders by name, discovered in a package, in entry points and in plug-in files.

The registries themselves are created next to what they hold: methods, backbones and scenarios in
``core.registry``, datasets in ``data.registry``. A new file in the right folder is found without a
list to edit. Nothing may be imported before someone asks for the entries: importing ``fedshift``
has to stay fast, and a broken plug-in must not break commands that do not need it.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from fedshift.base import seeds
from fedshift.base.errors import ClashError, ConfigError, UnknownNameError

T = TypeVar("T")
Builder = TypeVar("Builder", bound=Callable[..., Any])


SECTIONS = (
    "Use it",
    "Not for",
    "Equations",
    "Options",
)  # of a builder's docstring, each from a line's start
_SECTION = re.compile(rf"^({'|'.join(SECTIONS)}):\s*", re.MULTILINE)


class Equation(NamedTuple):
    """Where a paper states something, and the functions that compute it here."""

    where: str  # "Eq. 3", "Algorithm 1, line 5"
    functions: tuple[str, ...]


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One registered builder, with the citation that listings print beside it.

    What listings and pages say of it is the builder's docstring: a line of summary, the idea in a
    paragraph, then up to four sections, each of which may be missing::

        Use it: one sentence, when it is the right choice.
        Not for: one sentence, when it is not.
        Equations: Eq. 3: `model_contrast`; Algorithm 1, line 5: `ModelContrast.begin`.
        Options: projector: two layers between body and head, as released.
    """

    name: str
    build: Callable[..., T]
    paper: str
    group: str = ""  # the heading under which listings show it

    @property
    def doc(self) -> str:
        """The builder's docstring, without indentation."""
        return inspect.getdoc(self.build) or ""

    @property
    def summary(self) -> str:
        """First line of the builder's docstring."""
        return self.doc.split("\n")[0]

    @property
    def idea(self) -> str:
        """What stands between the summary and the first section, on one line."""
        told = _SECTION.split(self.doc, maxsplit=1)[0]
        return " ".join(told.partition("\n")[2].split())

    @property
    def use(self) -> str:
        """The section ``Use it``; empty if there is none."""
        return self._section("Use it")

    @property
    def not_for(self) -> str:
        """The section ``Not for``; empty if there is none."""
        return self._section("Not for")

    @property
    def equations(self) -> tuple[Equation, ...]:
        """The section ``Equations``: items between semicolons, functions between backticks."""
        items = self._section("Equations").removesuffix(".").split(";")
        found = (
            Equation(item.partition("`")[0].strip(" :,"), tuple(re.findall(r"`([^`]+)`", item)))
            for item in items
        )
        return tuple(equation for equation in found if equation.functions)

    def option_doc(self, name: str) -> str:
        """What the section ``Options`` says of a parameter of the builder; empty if nothing."""
        items = self._section("Options").removesuffix(".").split(";")
        told = dict(item.strip().partition(": ")[::2] for item in items)
        return told.get(name, "")

    def _section(self, title: str) -> str:
        words = _SECTION.split(self.doc)  # text, title, text, title, text, ...
        told = dict(zip(words[1::2], words[2::2], strict=True))
        return " ".join(told.get(title, "").split())

    def find(self, name: str, *packages: str) -> Any:
        """What ``name`` means beside the builder, such as a function under ``equations``.

        Looked for in the builder's module, then in the modules of ``packages``; None if it is in
        none of them. ``Class.method`` is a method.
        """
        modules = [self.build.__module__, *(m for package in packages for m in _modules(package))]
        first, *rest = name.split(".")
        for module in modules:
            found = getattr(sys.modules.get(module), first, None)
            for attribute in rest:
                found = getattr(found, attribute, None)
            if found is not None:
                return found
        return None

    @property
    def options(self) -> Mapping[str, inspect.Parameter]:
        """Parameters of the builder function, by name."""
        return inspect.signature(self.build).parameters


def _modules(package: str) -> list[str]:
    """Modules of a package that are imported, without those of packages in it."""
    inside = (m for m in sys.modules if m.startswith(f"{package}."))
    return sorted(m for m in inside if m.count(".") == package.count(".") + 1)


class Registry(Generic[T]):
    """Builders of one kind (methods, say), registered by a decorator when their module is imported.

    Discovery means importing every module that might contain such a decorator: all modules of
    ``package`` and its subpackages, then the entry points that installed packages declare in
    ``group``, then the files named by the environment variable FEDSHIFT_PLUGINS. It runs when the
    entries are first asked for, and again only if FEDSHIFT_PLUGINS or the length of ``sys.path``
    has changed, as in a notebook that adds a plug-in later. Python imports each module once, so a
    second search is cheap and registers nothing twice.
    """

    def __init__(self, kind: str, package: str, group: str) -> None:
        self.kind, self.package, self.group = kind, package, group
        self._entries: dict[str, Entry[T]] = {}
        self._found: tuple[str, int] | None = None  # the environment of the last search

    def register(
        self, name: str, *, paper: str = "", group: str = ""
    ) -> Callable[[Builder], Builder]:
        """Decorator: make a builder available as ``name`` in expressions and to the contract suite.

        A module may register a name again (a reloaded notebook cell); a second module may not.
        """

        def keep(build: Builder) -> Builder:
            old = self._entries.get(name)
            if old and old.build.__module__ != build.__module__:
                raise ClashError(
                    f"{self.kind} {name!r} is registered by {old.build.__module__} and by "
                    f"{build.__module__}; rename one"
                )
            self._entries[name] = Entry(name, build, paper, group)
            return build

        return keep

    def forget(self, name: str) -> None:
        """Remove an entry, such as a dataset that its owner has deleted."""
        self._entries.pop(name, None)

    def entries(self) -> dict[str, Entry[T]]:
        """All entries sorted by name, after the search that the class describes."""
        found = (os.environ.get("FEDSHIFT_PLUGINS", ""), len(sys.path))
        if found == self._found:
            return dict(sorted(self._entries.items()))
        self._import_package()
        for point in entry_points(group=self.group):
            point.load()
        for path in plugin_files():
            import_file(path)
        self._found = found
        return dict(sorted(self._entries.items()))

    def _import_package(self) -> None:
        package = importlib.import_module(self.package)
        for info in pkgutil.walk_packages(package.__path__, f"{self.package}."):
            importlib.import_module(info.name)

    def get(self, name: str) -> Entry[T]:
        """The entry called ``name``, or an error that suggests the closest names."""
        if name not in self._entries:
            self._import_package()
        if name in self._entries:  # a name belongs to one module: no plug-in has to be looked at
            return self._entries[name]
        known = self.entries()
        if name not in known:
            raise UnknownNameError.of(self.kind, name, known)
        return known[name]


def plugin_files() -> Iterator[Path]:
    """Python files named by FEDSHIFT_PLUGINS, a list of files and folders."""
    for item in filter(None, os.environ.get("FEDSHIFT_PLUGINS", "").split(os.pathsep)):
        path = Path(item)
        if not path.exists():
            raise ConfigError(f"FEDSHIFT_PLUGINS names {item}, which does not exist")
        yield from sorted(path.glob("*.py")) if path.is_dir() else [path]


def import_file(path: Path) -> None:
    """Import a plug-in file once per process.

    The module's name contains a hash of the file's path, so that two plug-ins with the same file
    name in different folders do not replace each other.
    """
    name = f"fedshift_plugin_{path.stem}_{seeds.derive(path.resolve()):x}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
