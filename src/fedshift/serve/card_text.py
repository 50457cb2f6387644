"""A model card as Markdown and as HTML, from the JSON that ``card`` makes.

Both render the same sections, so that they cannot differ. The page loads nothing and has no script;
every name in it may come from a user's files, so the template escapes all of them, and Markdown
escapes what would end a cell or begin a tag.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from fedshift.base.errors import ConfigError
from fedshift.base.files import write_bytes
from fedshift.report import optional

SUFFIXES = (".md", ".json", ".html")
PAGE = """<!DOCTYPE html>
<html lang="en-GB"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{{ title }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .2rem .8rem; text-align: left;
border-bottom: 1px solid #8886; overflow-wrap: anywhere } svg { max-width: 24rem }
</style></head><body><h1>{{ title }}</h1>
{% for section in sections %}
<h2>{{ section.title }}</h2>
{% for line in section.lines %}<p>{{ line }}</p>
{% endfor %}
{% if section.rows %}<table><thead><tr>
{% for head in section.heads %}<th scope="col">{{ head }}</th>{% endfor %}</tr></thead><tbody>
{% for row in section.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table>{% endif %}
{% if section.drawing %}{{ section.drawing | safe }}{% endif %}
{% endfor %}
</body></html>
"""


@dataclass(frozen=True)
class Section:
    """A title, sentences, and a table."""

    title: str
    lines: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    drawing: str = ""  # an svg element that we made ourselves


def write_card(card: Mapping[str, Any], path: Path) -> Path:
    """Write a card; the name's end says whether as Markdown, JSON or HTML."""
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise ConfigError(f"{path} ends in {kind!r}; a card is one of {', '.join(SUFFIXES)}")
    if kind == ".json":
        text = json.dumps(card, indent=2) + "\n"
    else:
        text = markdown(card) if kind == ".md" else html(card)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, text.encode())
    return path


def write_cards(card: Mapping[str, Any], stem: Path) -> tuple[Path, ...]:
    """All three beside a model: ``NAME.card.md``, ``.json`` and ``.html``."""
    return tuple(write_card(card, stem.with_name(f"{stem.name}.card{end}")) for end in SUFFIXES)


def html(card: Mapping[str, Any]) -> str:
    """One page."""
    made = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return made.from_string(PAGE).render(title=_title(card), sections=[*sections(card)])


def markdown(card: Mapping[str, Any]) -> str:
    """The same as text."""
    out = [f"# {_plain(_title(card))}", ""]
    for section in sections(card):
        out += [f"## {_plain(section.title)}", ""]
        out += [line for text in section.lines for line in (_plain(text), "")]
        if section.rows:
            out.append(f"| {' | '.join(map(_plain, section.heads))} |")
            out.append(f"|{'---|' * len(section.heads)}")
            out += [f"| {' | '.join(map(_plain, row))} |" for row in section.rows] + [""]
    return "\n".join(out)


def _plain(text: str) -> str:
    """Text that is no markup: no new line, no cell, no tag, no link."""
    for mark in "\\`*_[]<>|":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


def _title(card: Mapping[str, Any]) -> str:
    whose = f", site {card['site']}" if card["site"] else ""
    return f"Model card: {card['method']} on {card['protocol']['scenario']}{whose}"


def sections(card: Mapping[str, Any]) -> Iterable[Section]:
    """All sections, in order."""
    yield _model(card)
    yield from _data(card["data"])
    yield _protocol(card["protocol"])
    for found in card["results"]:
        yield _results(found)
    for found in card["calibration"]:
        yield _calibration(found)
    if card["temperature"]:
        yield _temperature(card["temperature"])
    yield from _changes(card["adapted"])
    yield Section("Known limits", tuple(card["limits"]))
    yield from _leaving(card)
    yield _pairs("Versions", card["versions"])
    if card["files"]:
        rows = [(f["name"], str(f["bytes"]), f["sha256"]) for f in card["files"]]
        yield Section("Files", (), ("file", "bytes", "SHA-256"), tuple(rows))
    yield Section("How to reproduce", tuple(card["reproduce"]) or ("The run keeps no run file.",))


def _model(card: Mapping[str, Any]) -> Section:
    task = card["task"]
    licence = card["licence"] or "not stated; ask whoever trained the model"
    named = f"{len(task['classes'])} outputs: {', '.join(map(str, task['classes'][:50]))}"
    whose = f"the own model of site {card['site']}" if card["site"] else "the model of the run"
    return Section("Model", (
        f"{card['method']}: {whose} {card['name']}.",
        f"Task: {task['objective']}; {named}.",
        f"Licence: {licence}.",
    ))  # fmt: skip


def _data(data: Mapping[str, Any]) -> Iterable[Section]:
    lines = (f"Data {data['name']}, fingerprint {data['fingerprint'] or 'not known'}; no sample is "
             "in this card or in the model's files.",)  # fmt: skip
    keys = ("train", "val", "test")
    rows = [(name, *(str(n.get(k, "")) for k in keys)) for name, n in data["domains"].items()]
    yield Section("Data", lines, ("domain", *keys), tuple(rows))
    if data["sites"]:
        held = [(s, str(r["domain"]), str(r["examples"])) for s, r in data["sites"].items()]
        yield Section("Sites", (), ("site", "domain", "training samples"), tuple(held))
    if counts := data["test_classes"]:
        names = list(next(iter(counts.values())))
        found = [(d, *(str(n[c]) for c in names)) for d, n in counts.items()]
        yield Section("Test samples by class", (), ("domain", *names), tuple(found))


def _protocol(found: Mapping[str, Any]) -> Section:
    lines = [
        f"Scenario {found['scenario']}, {found['rounds']} rounds, seed {found['seed']}, backbone "
        f"{found['backbone']} ({found['parameters']} parameters); round chosen by "
        f"{found['selection']}.",
    ]
    if found["unseen"]:
        lines.append(f"Held out as a site not seen in training: {found['unseen']}.")
    rows = [(k, str(v)) for k, v in found["held_equal"].items()]
    return Section("Question and protocol", tuple(lines), ("choice", "value"), tuple(rows))


def _results(found: Mapping[str, Any]) -> Section:
    main = found["measure"]
    lines = (
        found["question"],
        f"Round {found['round']}, chosen by {found['rule']}. {main} in per cent with 95 % "
        f"intervals. Mean over domains: {_with(found['average'], main)}. Worst domain: "
        f"{found['worst']['name']} ({found['worst'][main]:.1f}).",
    )
    rows = [
        ("domain", name, _with(row, main), *_more(row)) for name, row in found["domains"].items()
    ]
    rows += [("site", name, _with(row, main), "", "") for name, row in found["sites"].items()]
    heads = ("", "name", main, "ECE", "NLL")
    return Section(f"Results: {found['protocol']}", lines, heads, tuple(rows))


def _with(row: Mapping[str, Any], main: str) -> str:
    wide = row.get("interval")
    return f"{row[main]:.1f}" + (f" ± {wide:.1f}" if wide is not None else "")


def _more(row: Mapping[str, Any]) -> tuple[str, str]:
    ece, nll = row.get("ece"), row.get("nll")
    return f"{ece:.1f}" if ece is not None else "", f"{nll:.2f}" if nll is not None else ""


def _calibration(found: Mapping[str, Any]) -> Section:
    lines = (f"Expected calibration error {found['ece']:.1f} % over all test samples. A calibrated "
             "model is right as often as it is confident.",)  # fmt: skip
    rows = [(str(b["count"]), f"{b['confidence']:.2f}", f"{b['accuracy']:.2f}")
            for b in found["bins"]]  # fmt: skip
    heads = ("samples", "mean confidence", "accuracy")
    title = f"Calibration: {found['protocol']}"
    return Section(title, lines, heads, tuple(rows), drawn(found["bins"], found["protocol"]))


def _temperature(found: Mapping[str, Any]) -> Section:
    few = ("These samples are few, so the number may be far off.",) if found["unsure"] else ()
    lines = (f"Logits are divided by {found['value']:.3f} before they become probabilities, which "
             f"changes no class. The number was fitted on {found['fitted']} validation samples of "
             "the training sites; at a site with another look it may be a wrong one.",
             *few)  # fmt: skip
    rows = [
        (name, str(g["samples"]), *(f"{v:.1f}" for v in g["ece"]), *(f"{v:.2f}" for v in g["nll"]))
        for name, g in found["tests"].items()
    ]
    heads = ("test samples of", "number", "ECE before", "ECE after", "NLL before", "NLL after")
    return Section("Temperature", lines, heads, tuple(rows))


def drawn(bins: Sequence[Mapping[str, float]], name: str) -> str:
    """The reliability diagram as an svg element; empty without matplotlib."""
    if not optional.has_matplotlib():
        return ""
    figures = optional.figures()
    with figures.style():
        figure = figures.Drawing((3.6, 3.2), dpi=150, layout="constrained")
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], linestyle=":", color=figures.INK)
        axes.plot([b["confidence"] for b in bins], [b["accuracy"] for b in bins], marker="o")
        axes.set(xlabel="mean confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    made: str = figures.inline(figure, f"reliability-{name}", f"Reliability diagram, {name}")
    return made


def _changes(steps: Sequence[Mapping[str, Any]]) -> Iterable[Section]:
    """How the model was changed for a site that took no part."""
    rows = []
    for step in steps:
        told, verdict = step["scores"], step.get("verdict", {})
        how = f"{step['kind']} ({step.get('with') or step['layers']})"
        moved = f"{told['before']:.1f} -> {told['after']:.1f} %" if told else "no labels"
        doubts = [verdict["collapse"]] if verdict.get("collapse") else []
        doubts += verdict.get("warnings", [])
        rows.append((how, step["site"], str(step["samples"]), moved, "; ".join(doubts) or "none"))
    if rows:
        heads = ("how", "site", "samples", "its labelled samples", "warnings")
        yield Section("Changed for a site", (), heads, tuple(rows))


def _leaving(card: Mapping[str, Any]) -> Iterable[Section]:
    rows = [(r["kind"], r["what"], str(r["bytes"]), str(r["sites"])) for r in card["left"]]
    none = () if rows else ("The run keeps no ledger that could be read.",)
    heads = ("kind", "what it is", "bytes", "sites")
    yield Section("What left the sites", none, heads, tuple(rows))
    found = card["privacy"]
    if not found["guarantees"] and not found["visits"]:
        yield Section("Privacy", ("No differential privacy: what left the sites is not noised.",))
        return
    told = {**found["guarantees"], **{f"visits of {k}": v for k, v in found["visits"].items()}}
    yield _pairs("Privacy", told)


def _pairs(title: str, found: Mapping[str, Any]) -> Section:
    return Section(title, (), ("", "value"), tuple((k, str(v)) for k, v in found.items()))
