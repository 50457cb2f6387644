"""Writes what the documentation says of methods from what is declared about them.

The heads of docs/methods/*.md, the list in docs/methods.md and the tables of docs/field.md; with
``--stacks`` also the last of these, for which every pair of parts is built (minutes).
``--check`` writes nothing and fails if a file is not up to date. A new method needs no edit here:
its page has the line ``<!-- generated -->``, or is made with a head only.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import method_pictures

from fedshift.about import card as cards
from fedshift.about import stacks
from fedshift.base.errors import FedshiftError
from fedshift.base.registry import Entry
from fedshift.cli.catalogue import by_group
from fedshift.core.channel import Channel
from fedshift.core.method import Method
from fedshift.core.registry import METHODS, build
from fedshift.core.resource import resource
from fedshift.core.scenario import Scenario
from fedshift.experiment.scenario import scenario_from

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
ROWS = ROOT / "scripts" / "paper_rows.toml"
BEGIN, END = "<!-- generated -->", "<!-- end of generated -->"
FAMILIES = {  # simple methods of one idea share a page
    "server-optimisers": ("fedavgm", "fedadagrad", "fedadam", "fedyogi"),
    "robust-rules": (
        "median", "trimmed-mean", "krum", "multi-krum", "norm-clip", "geometric-median",
    ),
    "codecs": ("half", "quantise", "top-k"),
    "privacy-parts": ("central-dp", "local-dp", "secure-aggregation"),
}  # fmt: skip
OPENED = {  # what else a scenario needs for a resource, as it is typed
    "public_set": "--set scenario.public=digits",
    "public_labels": "--set scenario.public=digits",
    "client_unlabelled": "--set scenario.labelled=0.5",
    "sample_domains": "--set scenario.partition.kind=heterogeneity",
}
POINTS: Mapping[str, tuple[str, ...]] = {  # extension points and their hooks
    "structure": ("build",),
    "scope": ("scope",),
    "data": ("batch",),
    "objective": ("loss", "task_loss", "phases"),
    "step": ("edit_gradients",),
    "exchange": ("enrol", "probe", "uploads", "send", "send_scoring"),
    "server": ("admit", "merge", "personal", "refine"),
    "inference": ("predict", "adapt"),
}
CHANNEL = ("negotiate", "encode", "decode", "decode_all")


def ours() -> dict[str, Entry[Method]]:
    """The methods of the project, without plug-ins."""
    known = METHODS.entries().items()
    return {name: e for name, e in known if e.build.__module__.startswith("fedshift.methods")}


def page_of(name: str) -> str:
    """The page that a method is on, without suffix."""
    return next((page for page, names in FAMILIES.items() if name in names), name)


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    cells = (" | ".join(str(cell).replace("|", "\\|") for cell in line) for line in lines)
    return "\n".join(f"| {line} |" for line in cells)


# heads of pages


def command(entry: Entry[Method], scenario: Scenario) -> str:
    """How the method is run on the embedded digits."""
    declared = entry.build().declared
    needs = sorted({need for d in declared for need in d.needs})
    words = [f"--allow {need}" for need in needs if not resource(need).granted(scenario)]
    words += dict.fromkeys(OPENED[need] for need in needs if need in OPENED)
    if any(d.gives_privacy for d in declared):
        words.append("--set scenario.private_at_new_site=refuse")
    return " ".join(["fedshift run --method", entry.name, *words])


def travels(entry: Entry[Method], found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What travels, in words and in bytes."""
    if "problem" in found:
        return [("travels", f"not counted here: {found['problem']}")]
    told = [
        "; ".join(
            f"{way}: {', '.join(f'{k} {cards.human(v)}' for k, v in found[way].items()) or 'none'}"
            for way in ("up", "down")
        )
    ]
    if found["later"]:
        told.append(f"and what {', '.join(found['later'])} may send down after round 1")
    up, down = (
        cards.times(own, plain) for own, plain in zip(found["totals"], found["fedavg"], strict=True)
    )
    rows = [
        ("travels per round", "; ".join(told)),
        ("relative to FedAvg", f"{up} up, {down} down (`{found['backbone']}`, payload at most)"),
    ]
    data = cards.leaves(entry.build())
    return [*rows, ("derived from data", "; ".join(data))] if data else rows


def head(entry: Entry[Method], scenario: Scenario) -> str:
    """The generated head of one method."""
    found = cards.card(entry)
    parts = ", ".join(f"`{p['name']}` ({p['kind']})" for p in found["parts"])
    equations = (
        f"{e['where']}: {', '.join(f'`{name}`' for name in e['functions'])}"
        for e in found["equations"]
    )
    rows = [
        ("paper", found["paper"]),
        ("group", found["group"]),
        ("command", f"`{command(entry, scenario)}`"),
        ("use it", found["use"]),
        ("not for", found["not_for"]),
        ("parts", parts),
        ("equations", "; ".join(equations)),
        *travels(entry, cards.measured(entry, scenario)),
        ("needs", "; ".join(found["needs"])),
    ]
    text = table(["`" + entry.name + "`", found["summary"]], [r for r in rows if r[1]])
    if found["settings"]:
        settings = [
            (f"`{s['key']}`", shown(s["default"]), s["range"], s["meaning"])
            for s in found["settings"]
        ]
        listed = table(["setting", "default", "range", "meaning"], settings)
        summary = f"<summary>Settings of {entry.name}</summary>"
        text += f'\n\n<details markdown="1">\n{summary}\n\n{listed}\n\n</details>'
    return text


def shown(value: Any) -> str:
    """A default as it is typed."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"`{value}`" if value != "" else "empty"


def filled(text: str, generated: str, name: str = "") -> str:
    """A page with one generated part replaced; the first time only its first mark is there."""
    begin = f"<!-- generated: {name} -->" if name else BEGIN
    before, mark, after = text.partition(begin)
    if not mark:
        raise FedshiftError(f"a page has no line {begin}; add it where the generated part belongs")
    own, end, rest = after.partition(END)
    if not end or "<!-- generated" in own:
        rest = after
    return f"{before}{begin}\n\n{generated}\n\n{END}{rest}"


def page(name: str, entries: Sequence[Entry[Method]], scenario: Scenario) -> str:
    """One page: its head from the declarations, its body as it is, or from the docstring."""
    path = DOCS / "methods" / f"{name}.md"
    made = f"# {name}\n\n{BEGIN}\n\n" + "\n\n".join(e.idea for e in entries) + "\n"
    text = path.read_text() if path.exists() else made
    return filled(text, "\n\n".join(head(e, scenario) for e in entries))


def pages(scenario: Scenario) -> Iterator[tuple[Path, str]]:
    """Every page of docs/methods."""
    known = ours()
    names = dict.fromkeys(page_of(name) for name in known)
    for name in names:
        own = [known[n] for n in FAMILIES.get(name, (name,)) if n in known]
        yield DOCS / "methods" / f"{name}.md", page(name, own, scenario)


# the index


def index() -> str:
    """The list of docs/methods.md: all methods by group."""
    rows = [{"name": n, "group": e.group, "entry": e} for n, e in ours().items()]
    lines = [f"{len(rows)} methods."]
    for group, own in by_group(rows).items():
        cells = [
            (f"[`{r['name']}`](methods/{page_of(r['name'])}.md)", r["entry"].summary,
             r["entry"].paper)
            for r in own
        ]  # fmt: skip
        lines += [f"### {group.capitalize()}", table(["method", "what it does", "paper"], cells)]
    return "\n\n".join(lines)


# docs/field.md


def hooks(method: Method) -> dict[str, str]:
    """The hooks that a method's parts override, by extension point."""
    found = {
        point: ", ".join(f"`{h}`" for h in names if method.overriding(h))
        for point, names in POINTS.items()
    }
    channels = (
        h for h in CHANNEL
        if any(getattr(type(c), h) is not getattr(Channel, h) for c in method.channels)
    )  # fmt: skip
    found["channel"] = ", ".join(f"`{h}`" for h in channels)
    label = method.aggregate.label
    found["aggregation"] = label
    single = any(d.needs_individual_updates for d in method.declared)
    found["single updates"] = "yes" if single else ""
    return found


def extension_points() -> str:
    """Methods x extension points, a table per group."""
    rows = [{"name": n, "group": e.group, "hooks": hooks(e.build())} for n, e in ours().items()]
    lines = []
    for group, own in by_group(rows).items():
        used = [p for p in own[0]["hooks"] if any(r["hooks"][p] for r in own)]
        cells = [
            [f"[`{r['name']}`](methods/{page_of(r['name'])}.md)", *(r["hooks"][p] for p in used)]
            for r in own
        ]
        lines += [f"### {group.capitalize()}", table(["method", *used], cells)]
    counts = {
        p: sum(bool(r["hooks"][p]) for r in rows) for p in (*POINTS, "channel", "aggregation")
    }
    lines.append("Methods that use each point: " + ", ".join(f"{p} {n}" for p, n in counts.items()))
    return "\n\n".join(lines) + "."


def paper_rows() -> dict[str, list[tuple[str, str, str]]]:
    """Rows of the papers' tables: what the paper calls it, our expression, the tables."""
    found = tomllib.loads(ROWS.read_text())
    return {paper: [tuple(row) for row in own["rows"]] for paper, own in found.items()}


def names_of(rows: Iterable[tuple[str, str, str]]) -> dict[str, None]:
    """The methods that the rows begin with, once each."""
    first = (re.split(r"[\s\[]", expression)[0] for _, expression, _ in rows if expression)
    return dict.fromkeys(first)


def baselines() -> list[str]:
    """What the five papers compare with: every method of their tables but the five themselves."""
    papers = paper_rows()
    core = {paper.lower() for paper in papers}
    every = names_of(row for rows in papers.values() for row in rows)
    return [name for name in every if name not in core]


def missing() -> dict[str, str]:
    """Expressions of the rows that cannot be built, with the reason."""
    found = {}
    for rows in paper_rows().values():
        for _, expression, _ in rows:
            try:
                if expression:
                    build(expression)
            except FedshiftError as error:
                found[expression] = str(error)
    return found


def table_rows() -> str:
    """The map of the papers' rows to our names."""
    lines = []
    for paper, rows in paper_rows().items():
        cells = [(row, f"`{e}`" if e else "none", tables) for row, e, tables in rows]
        lines += [f"### {paper}", table(["row", "here", "tables"], cells)]
    here = [name for name in baselines() if name in METHODS.entries()]
    told = (
        f"Besides the five, their tables name {len(baselines())} methods; "
        f"{len(here)} of {len(baselines())} can be run."
    )
    absent = [name for name in baselines() if name not in here]
    more = f" Missing: {', '.join(absent)}." if absent else ""
    return "\n\n".join([told + more, *lines])


def field(*, with_stacks: bool) -> str:
    """The page with its three generated parts; the last one only where it is asked for."""
    text = (DOCS / "field.md").read_text()
    text = filled(text, extension_points(), "points")
    text = filled(text, table_rows(), "rows")
    return filled(text, stacking(), "stacks") if with_stacks else text


# what stacks


def stacking() -> str:
    """All pairs: counts by group, and the refused ones by reason."""
    known = stacks.units(ours=True)
    needy = stacks.alone(known.values())
    free = {name: unit for name, unit in known.items() if name not in needy}
    refused, ordered, counts = [], [], {}
    for left, right in stacks.pairs(free):
        found = stacks.refusal(left, right)
        key = frozenset((left.group, right.group))
        stack, whole = counts.get(key, (0, 0))
        counts[key] = stack + (found is None), whole + 1
        if found:
            refused.append(found)
        elif turned := stacks.order(left, right):
            ordered.append(turned)
    stack, whole = (sum(c[i] for c in counts.values()) for i in (0, 1))
    told = f"{len(free)} parts and rules make {whole} pairs: {stack} stack, {whole - stack} do not."
    return "\n\n".join(
        [
            told,
            count_table(free, counts),
            *alone_lines(needy),
            *reasons(refused, known),
            *order_lines(ordered),
        ]
    )


def count_table(
    known: Mapping[str, stacks.Unit], counts: Mapping[frozenset[str], tuple[int, int]]
) -> str:
    """Pairs that stack, of how many, for every two groups."""
    rows = [{"name": u.name, "group": u.group} for u in known.values()]
    groups = {name: own[0]["group"] for name, own in by_group(rows).items()}
    cells = []
    for i, (name, group) in enumerate(groups.items()):
        line = []
        for j, other in enumerate(groups.values()):
            stack, whole = counts.get(frozenset((group, other)), (0, 0))
            line.append(f"{stack} of {whole}" if whole and j >= i else "")
        cells.append([name, *line])
    return table(["", *groups], cells)


def alone_lines(needy: Mapping[str, str]) -> list[str]:
    """Parts that need another one, and why."""
    if not needy:
        return []
    lines = [f"- `{name}`: {reason}" for name, reason in needy.items()]
    return ["Not in any pair, since they need another part:", "\n".join(lines)]


def reasons(refused: Sequence[stacks.Refusal], known: Mapping[str, stacks.Unit]) -> list[str]:
    """Refused pairs under their reason, names replaced; any two of a set in one line."""
    found: dict[str, list[tuple[str, str]]] = {}
    for pair in refused:
        text = neutral(pair.reason, known[pair.left], known[pair.right])
        found.setdefault(text, []).append((pair.left, pair.right))
    lines = ["Refused:"]
    for text, own in sorted(found.items(), key=lambda item: -len(item[1])):
        lines.append(f"- {text}: {paired(own)}")
    return [lines[0], "\n".join(lines[1:])] if refused else []


def neutral(reason: str, left: stacks.Unit, right: stacks.Unit) -> str:
    """A reason in general words: its first half, with A and B in place of names."""
    reason = reason.partition(";")[0]
    both = re.fullmatch(r".+ and .+ both provide '(\w+)'", reason)
    if both:
        return f"one part provides `{both[1]}`"
    if "are both aggregators" in reason:
        return "a method has one aggregator"
    if "both encode the weights" in reason:
        return "one codec encodes the weights"
    for unit in (left, right):
        reason = stacks.general(reason, unit, f"`{unit.name}`")
    told = re.sub(r"also sends .*, which it does not cover", "also sends data", reason)
    told = re.sub(r"\S+ of (`[^`]+`) is personal", r"an entry of \1 is personal", told)
    guard = re.match(r"`([^`]+)` cannot be used here: `[^`]+` (.*)", told)
    if guard:
        return f"`{guard[1]}`: the other {guard[2]}"
    entry = re.match(r"`([^`]+)` cannot be used here: (an entry of) `[^`]+` (.*)", told)
    return f"`{entry[1]}`: {entry[2]} the other {entry[3]}" if entry else told


def paired(pairs: Sequence[tuple[str, str]]) -> str:
    """Pairs in few words: any two of a set, one with several, or each by itself."""
    names = sorted({name for pair in pairs for name in pair})
    if len(names) > 2 and len(pairs) == len(list(combinations(names, 2))):
        return "any two of " + ", ".join(f"`{n}`" for n in names)
    common = [n for n in names if all(n in pair for pair in pairs)]
    if common:
        others = [n for n in names if n != common[0]]
        return f"`{common[0]}` with " + ", ".join(f"`{n}`" for n in others)
    return ", ".join(f"`{a}` + `{b}`" for a, b in pairs)


def order_lines(ordered: Sequence[stacks.Refusal]) -> list[str]:
    """Pairs that stack in one order only."""
    if not ordered:
        return []
    lines = [f"- `{o.right}` before `{o.left}`: {o.reason}" for o in ordered]
    return ["In one order only:", "\n".join(lines)]


# files


def files(*, with_stacks: bool) -> Iterator[tuple[Path, str]]:
    """Every file with what it should hold."""
    yield from pages(scenario_from("digits", None, None, {}))
    listed = DOCS / "methods.md"
    yield listed, filled(listed.read_text(), index())
    yield DOCS / "field.md", field(with_stacks=with_stacks)
    yield from method_pictures.files()


def main(arguments: Sequence[str] | None = None) -> int:
    """Write what has changed, or say what would."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if out of date")
    parser.add_argument("--stacks", action="store_true", help="build every pair, too: minutes")
    given = parser.parse_args(arguments)
    old = []
    for path, text in files(with_stacks=given.stacks):
        if not path.exists() or path.read_text() != text:
            old.append(path)
            if not given.check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
    for path in old:
        print(f"{'out of date' if given.check else 'written'}: {path.relative_to(ROOT)}")
    return int(given.check and bool(old))


if __name__ == "__main__":
    sys.exit(main())
