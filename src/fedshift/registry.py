"""Methods, backbones and scenarios by name; a file in the right folder is enough to be found."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedshift import seeds
from fedshift.aggregate.rules import Mean
from fedshift.data.samples import Domain
from fedshift.declare import convert
from fedshift.errors import ClashError, ConfigError, UnknownNameError
from fedshift.method import Method, Part
from fedshift.net import Net
from fedshift.scenario import Scenario

T = TypeVar("T")
Builder = TypeVar("Builder", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One registered builder and what a reader wants to know of it."""

    name: str
    build: Callable[..., T]
    paper: str

    @property
    def summary(self) -> str:
        """First line of the builder's docstring."""
        return (inspect.getdoc(self.build) or "").split("\n")[0]

    @property
    def options(self) -> Mapping[str, inspect.Parameter]:
        """Options of the builder itself."""
        return inspect.signature(self.build).parameters


class Registry(Generic[T]):
    """Builders of one kind: those of a package, of entry points and of FEDSHIFT_PLUGINS."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind, self.package = kind, package
        self._entries: dict[str, Entry[T]] = {}
        self._found: tuple[str, int] | None = None  # where we have looked already

    def register(self, name: str, *, paper: str = "") -> Callable[[Builder], Builder]:
        """Make a builder available as ``name`` on the command line and to the contract suite."""

        def keep(build: Builder) -> Builder:
            old = self._entries.get(name)
            if old and old.build.__module__ != build.__module__:
                raise ClashError(
                    f"{self.kind} {name!r} is registered by {old.build.__module__} and by "
                    f"{build.__module__}; rename one"
                )
            self._entries[name] = Entry(name, build, paper)
            return build

        return keep

    def entries(self) -> dict[str, Entry[T]]:
        """Everything registered, by name, after all modules that may register were imported."""
        found = (os.environ.get("FEDSHIFT_PLUGINS", ""), len(sys.path))
        if found == self._found:
            return dict(sorted(self._entries.items()))
        package = importlib.import_module(self.package)
        for info in pkgutil.iter_modules(package.__path__, f"{self.package}."):
            importlib.import_module(info.name)
        for point in entry_points(group=self.package):
            point.load()
        for path in plugin_files():
            import_file(path)
        self._found = found
        return dict(sorted(self._entries.items()))

    def get(self, name: str) -> Entry[T]:
        """The entry called ``name``, or an error with the nearest names."""
        known = self.entries()
        if name not in known:
            raise UnknownNameError.of(self.kind, name, known)
        return known[name]


METHODS: Registry[Method] = Registry("method", "fedshift.methods")
BACKBONES: Registry[Net] = Registry("backbone", "fedshift.backbones")
SCENARIOS: Registry[Scenario] = Registry("scenario", "fedshift.scenarios")

DATASETS: Registry[Mapping[str, Domain]] = Registry("dataset", "fedshift.data")

register = METHODS.register
register_backbone = BACKBONES.register
register_scenario = SCENARIOS.register
register_dataset = DATASETS.register


def plugin_files() -> Iterator[Path]:
    """Python files named by FEDSHIFT_PLUGINS, a list of files and folders."""
    for item in filter(None, os.environ.get("FEDSHIFT_PLUGINS", "").split(os.pathsep)):
        path = Path(item)
        if not path.exists():
            raise ConfigError(f"FEDSHIFT_PLUGINS names {item}, which does not exist")
        yield from sorted(path.glob("*.py")) if path.is_dir() else [path]


def import_file(path: Path) -> None:
    """Import a plug-in file once per process."""
    name = f"fedshift_plugin_{path.stem}_{seeds.derive(path.resolve()):x}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def parts() -> dict[str, type[Part]]:
    """Every part that the registered methods' modules define, by name."""
    METHODS.entries()
    found: dict[str, type[Part]] = {}
    open_ = [Part]
    while open_:
        for kind in open_.pop().__subclasses__():
            open_.append(kind)
            with suppress(
                TypeError
            ):  # a part that has settings without a default stands in no word
                found[kind().name] = kind
    return found


def build(expression: str, **settings: Any) -> Method:
    """A method from words: ``"fedprox[mu=0.1]"``, ``"fedavg + mixup"``, ``"moon - projector"``.

    The first name is a method; ``+`` adds a method or a part, ``-`` (between spaces) takes a part
    away. ``settings`` are those of the first name.

    Examples:
        >>> build("fedprox", mu=0.1).parts[0].mu
        0.1
        >>> [p.name for p in build("fedavg + mixup[alpha=0.4] + proximal").parts]
        ['mixup', 'proximal']
    """
    words = re.split(r"\s+([+-])\s+", expression.strip())
    whole = component(words[0], METHODS.entries(), settings)
    for sign, word in zip(words[1::2], words[2::2], strict=True):
        if sign == "-":
            whole = whole.without(word)
        else:
            added = component(word, _single_parts() | METHODS.entries(), {})
            whole = _join(whole, added, word)
    return whole


def component(word: str, known: Mapping[str, Entry[Method]], settings: Mapping[str, Any]) -> Method:
    """One name with its settings: those of the builder go there, the others to the parts."""
    match = re.fullmatch(r"\s*([^\[\]]+?)\s*(?:\[(.*)\])?\s*", word)
    if match is None:
        raise ConfigError(f"cannot read {word!r}; write a name, or name[key=value, key=value]")
    name, inside = match.groups()
    if name not in known:
        raise UnknownNameError.of("method or part", name, known)
    settings = dict(settings) | parse_settings((inside or "").split(","))
    options = known[name].options
    own = {k: convert(k, v, options[k].default) for k, v in settings.items() if k in options}
    whole = known[name].build(**own)
    for key in [k for k in settings if k not in own]:
        whole = whole.set(key, settings[key])
    return whole


def parse_settings(items: Iterable[str]) -> dict[str, str]:
    """``["mu=0.1"]`` to ``{"mu": "0.1"}``."""
    out = {}
    for item in filter(None, (i.strip() for i in items)):
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"cannot read the setting {item!r}; write key=value")
        out[key.strip()] = value.strip()
    return out


def _single_parts() -> dict[str, Entry[Method]]:
    """Every part as a method of one part."""
    return {name: Entry(name, partial(_alone, kind), "") for name, kind in parts().items()}


def _alone(kind: type[Part]) -> Method:
    return Method((kind(),))


def _join(left: Method, right: Method, name: str) -> Method:
    """Parts of both, and the one aggregator that is not the plain mean."""
    own = [m.aggregate for m in (left, right) if m.aggregate != Mean()]
    if len(own) > 1 and own[0] != own[1]:
        raise ClashError(
            f"{own[0].describe()['name']} and {own[1].describe()['name']} are both aggregators; "
            f"{name!r} cannot be added, a method has one"
        )
    return Method(left.parts + right.parts, own[0] if own else Mean())
