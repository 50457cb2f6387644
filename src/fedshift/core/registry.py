"""Methods, backbones and scenarios by name, and methods built from expressions.

Modules register their builders here by decorator; the command line, run configurations and Python
users turn an expression such as ``"fedavg + mixup"`` into a method by :func:`build`. A file in the
right folder is found without a list to edit, and nothing is imported before it is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from fedshift.base.errors import ClashError, ConfigError, UnknownNameError
from fedshift.base.registry import Entry, Registry
from fedshift.base.settings import convert, parse_settings
from fedshift.core.aggregate import Mean
from fedshift.core.channel import Channel
from fedshift.core.method import Method
from fedshift.core.net import Net
from fedshift.core.part import Part
from fedshift.core.scenario import Scenario

METHODS: Registry[Method] = Registry("method", "fedshift.methods", "fedshift.methods")
BACKBONES: Registry[Net] = Registry("backbone", "fedshift.backbones", "fedshift.backbones")
SCENARIOS: Registry[Scenario] = Registry("scenario", "fedshift.scenarios", "fedshift.scenarios")
register = METHODS.register
register_backbone = BACKBONES.register
register_scenario = SCENARIOS.register


def parts() -> dict[str, type[Part]]:
    """Every part class that can appear in an expression, by name.

    Found by walking the subclasses of :class:`Part` after all modules of methods were imported.
    """
    METHODS.entries()
    found: dict[str, type[Part]] = {}
    open_ = [Part]
    while open_:
        for kind in open_.pop().__subclasses__():
            open_.append(kind)
            if kind is Channel:
                continue
            # A part with mandatory settings cannot appear in an expression.
            with suppress(TypeError):
                found[kind().name] = kind
    return found


def build(expression: str, **settings: Any) -> Method:
    """A method from text: ``"fedprox[mu=0.1]"``, ``"fedavg + mixup"``, ``"moon - projector"``.

    The first name is a method; ``+`` adds a method or a part, ``-`` removes a part. The signs need
    spaces around them, since names contain hyphens. ``settings`` apply to the first name.

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
            whole = join(whole, added, word)
    return whole


def component(word: str, known: Mapping[str, Entry[Method]], settings: Mapping[str, Any]) -> Method:
    """One name with its settings, as a method.

    A setting that the builder function takes is passed to it; the others go to the parts.
    """
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


def _single_parts() -> dict[str, Entry[Method]]:
    """Every part as a builder of a method of that part alone."""
    return {name: Entry(name, partial(_alone, kind), "") for name, kind in parts().items()}


def _alone(kind: type[Part]) -> Method:
    return Method((kind(),))


def join(left: Method, right: Method, name: str) -> Method:
    """The parts of both, with the aggregator of whichever has one other than the plain mean."""
    own = [m.aggregate for m in (left, right) if m.aggregate != Mean()]
    if len(own) > 1 and own[0] != own[1]:
        raise ClashError(
            f"{own[0].label} and {own[1].label} are both aggregators, and a method has one; leave "
            f"out {name!r}, or the other one with - {own[0].name}"
        )
    return Method(left.parts + right.parts, own[0] if own else Mean())
