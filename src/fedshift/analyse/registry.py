"""The registry of analyses of finished runs, and the one function that runs them.

A kind is a function of results and keyword options that returns a ``Finding``; a new one is a file
with a registered function in ``analyse.kinds`` or in a plug-in. The options of a kind are its
keyword parameters, so that Python, recipes and the command line have the same ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from fedshift.analyse.finding import Finding
from fedshift.base.errors import ConfigError, UnknownNameError
from fedshift.base.registry import Registry
from fedshift.base.settings import convert
from fedshift.report.results import RunResult

ANALYSES: Registry[Finding] = Registry(
    "analysis of runs", "fedshift.analyse.kinds", "fedshift.run_analyses"
)
register_kind = ANALYSES.register


def analyse(kind: str, results: Sequence[RunResult], **options: Any) -> Finding:
    """Analyse finished runs.

    Args:
        kind: a name of ``ANALYSES``: curves, reach, radar, cost, spectrum, embedding, ...
        results: finished runs, as ``fedshift.run``, ``compare(...).results`` and ``load`` return.
        options: those of the kind; text is converted to the type of the default.

    Examples:
        >>> import fedshift
        >>> from fedshift.analyse import analyse
        >>> from fedshift.testing import tiny_scenario
        >>> run = fedshift.run("fedavg", tiny_scenario(rounds=1), quiet=True)
        >>> [row["method"] for row in analyse("curves", [run], protocol="global").table]
        ['fedavg']
    """
    entry = ANALYSES.get(kind)
    if not results:
        raise ConfigError(f"{kind} has no run to look at; give it finished runs")
    return entry.build(list(results), **_typed(kind, options_of(kind), options))


def options_of(kind: str) -> dict[str, inspect.Parameter]:
    """The options of a kind, by name, with their defaults."""
    found = ANALYSES.get(kind).options.values()
    return {p.name: p for p in found if p.kind is inspect.Parameter.KEYWORD_ONLY}


def _typed(
    kind: str, known: Mapping[str, inspect.Parameter], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The given options, each in the type of its default; an unknown one is an error."""
    for name in given:
        if name not in known:
            raise UnknownNameError.of(f"option of the analysis {kind!r}", name, known)
    return {name: _value(name, value, known[name]) for name, value in given.items()}


def _value(name: str, value: Any, parameter: inspect.Parameter) -> Any:
    """Text as what the option's default is; an option without one says its type itself."""
    if parameter.default is None and "str" in str(parameter.annotation):
        return value
    return convert(name, value, parameter.default)
