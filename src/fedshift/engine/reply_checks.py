"""What a valid reply is: every check of what a site sends, before anything else reads it.

``engine.replies`` asks :func:`why_rejected` about each reply. A reply comes from another machine,
which may be broken or hostile: no check here may raise, whatever it is given, and no number may
pass that a part, a rule or a metric cannot compute with. Whether an honest number is a *good* one
is for robust rules (``methods.robust``) and ``max_weight`` to bound, not for these checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from torch import Tensor

from fedshift.base import tree
from fedshift.core.message import Broadcast, Task, Update
from fedshift.core.net import Scope
from fedshift.core.objective import scores_of
from fedshift.core.payload import EntrySpec, not_finite
from fedshift.core.scenario import Scenario
from fedshift.core.server import Server

SLACK = 16 * 2**20  # bytes that an update may have beyond four times the model's
MOST_EXAMPLES = 10**9  # of one site
LARGEST_METRIC = 1e30  # sums of them, and their squares, are finite
MOST_METRICS = 1000  # names, beside the cells of a confusion matrix
LONGEST = 200  # characters of a name
BUDGETS = 1000  # local budgets that a part with phases of its own may take in one visit


def why_rejected(
    server: Server, asked: Broadcast, update: Update, *, examined: bool = False
) -> str:
    """The first reason to reject ``update``, or an empty string if it is valid.

    The order goes from cheap to expensive, and each check may rely on those before it. First task,
    round and scalars; then the size, before any tensor is read; then names, shapes and dtypes; only
    then the values, in one pass over the tensors. Parts come last, so that ``reject_reason`` sees a
    well-formed, finite update.

    With ``examined``, our own worker has already looked at the model's entries
    (``Worker._require_finite``): they are looked at again only if a channel has changed them since.
    """
    return (
        _wrong_task(asked, update)
        or _wrong_scalars(server, update)
        or _too_large(server, update)
        or _wrong_entries("shared", update.shared, expected(server, "shared", update.task))
        or _wrong_entries("personal", update.personal, expected(server, "personal", update.task))
        or _wrong_payload(server, update)
        or _wrong_values(server, update, examined=examined)
        or next(filter(None, (c.reject_reason(server, update) for c in server.method.channels)), "")
    )


def expected(server: Server, section: str, task: Task) -> Mapping[str, EntrySpec]:
    """What a section of a reply to ``task`` must contain; the same in every round, so kept."""
    key = section, task
    if key not in server.expected:
        server.expected[key] = (uploaded if section == "shared" else own)(server, task)
    return server.expected[key]


def uploaded(server: Server, task: str) -> Mapping[str, EntrySpec]:
    """The shared entries that a reply to ``task`` must contain, no more and no fewer.

    A reply to training has passed the channels of the method, which say what it looks like then.
    """
    statistics = server.statistics
    if task == "statistics":
        return _specs(server, statistics)
    if task != "train":
        return {}
    skipped = statistics if server.scenario.bn == "recompute" else set()
    entries: Mapping[str, EntrySpec] = _specs(server, server.shared.keys() - skipped)
    for channel in server.method.channels:
        entries = channel.wire(server, entries)
    return entries


def own(server: Server, task: str) -> Mapping[str, EntrySpec]:
    """The personal or private entries that a reply to ``task`` must contain."""
    scope = {"train": Scope.PERSONAL, "donate": Scope.PRIVATE}.get(task)
    return {} if scope is None else _specs(server, server.keys(scope))


def _specs(server: Server, keys: Set[str]) -> dict[str, EntrySpec]:
    return {key: EntrySpec.of(server.initial[key]) for key in keys}


def _wrong_payload(server: Server, update: Update) -> str:
    """Names, shapes and dtypes; there is no payload outside enrol, train and talk."""
    if update.task in server.uploads:
        return server.uploads[update.task].wrong_form(update.payload)
    found = next(iter(update.payload), "")
    return f"{update.task!r} has no payload, but {found} is there" if update.payload else ""


def _wrong_task(asked: Broadcast, update: Update) -> str:
    if (update.task, update.round) == (asked.task, asked.round):
        return ""
    return (
        f"it answers {shown(update.task)} of round {shown(update.round)}, not {asked.task!r} of "
        f"round {asked.round}"
    )


def _wrong_scalars(server: Server, update: Update) -> str:
    """Counts, facts and metrics: types, then ranges."""
    for name, low, high in (("examples", 1, MOST_EXAMPLES), ("steps", 0, 2**53)):
        value = getattr(update, name)
        if type(value) is not int or not low <= value <= high:
            return f"{name} is {shown(value)}, not a whole number from {low} to {high}"
    enrolled = server.roster.get(update.client)
    if enrolled and enrolled.examples != update.examples and update.task != "enrol":
        return f"examples is {update.examples}, but it enrolled with {enrolled.examples}"
    if type(update.kept) is not bool:
        return f"kept is {shown(update.kept)}, not true or false"
    return (
        (wrong_steps(server, update) if update.task == "train" else "")
        or _wrong_facts(server, update)
        or _wrong_metrics(server, update)
    )


def visit_steps(scenario: Scenario, examples: int) -> int:
    """Steps of the scenario's local budget at a client.

    Batches are those of ``split_rows``: a trailing single row joins the batch before it.
    """
    if scenario.steps:
        return scenario.steps
    batches = -(-examples // scenario.batch_size)
    alone = examples - (batches - 1) * scenario.batch_size == 1
    return (scenario.epochs or 1) * (batches - (alone and batches > 1))


def wrong_steps(server: Server, update: Update) -> str:
    """Steps are the scenario's budget exactly, unless a part has phases of its own.

    Rules divide by them (FedNova): a site must not choose how much its update counts.
    """
    method, budget = server.method, visit_steps(server.scenario, update.examples)
    if any(channel.weights_in_payload for channel in method.channels):
        return "" if update.steps == 0 else f"steps is {update.steps}, and the method sends none"
    free = bool(method.overriding("phases")) or not server.parameters
    if free and update.steps > BUDGETS * budget:
        return f"steps is {update.steps}, more than {BUDGETS} budgets of {budget}"
    if not free and update.steps != budget:
        return f"steps is {update.steps}, and {update.examples} examples take {budget}"
    return ""


def _wrong_facts(server: Server, update: Update) -> str:
    """At enrolment the domain, where a component needs it; nothing else, and nothing later."""
    facts: Any = update.facts
    if not isinstance(facts, dict) or facts.keys() - {"domain"}:
        return f"facts are {shown(facts)}, and it may tell its domain only"
    if update.task != "enrol":
        return f"facts are {shown(facts)}, not none" if facts else ""
    domain = facts.get("domain", "")
    if not isinstance(domain, str) or len(domain) > LONGEST or not domain.isprintable():
        return f"its domain is {shown(domain)}, not a short name"
    needing = [d.name for d in server.method.declared if "domain_ids" in d.needs]
    return f"its domain is missing, which {needing[0]} needs" if needing and not domain else ""


def _wrong_metrics(server: Server, update: Update) -> str:
    if not isinstance(update.metrics, dict):
        return f"metrics are {shown(update.metrics)}, not numbers by name"
    classes = server.net.classes
    if len(update.metrics) > MOST_METRICS + classes**2:
        return f"it has {len(update.metrics)} metrics"
    for name, number in update.metrics.items():
        if type(name) is not str or len(name) > LONGEST or not name.isprintable():
            return f"a metric is called {shown(name)}"
        if type(number) not in (int, float) or not abs(number) <= LARGEST_METRIC:
            return f"metric {name} is {shown(number)}, not a finite number up to {LARGEST_METRIC:g}"
    return _wrong_scores(server, update) if update.task in ("score", "assess") else ""


def _wrong_scores(server: Server, update: Update) -> str:
    """Counts and measures by split, as far as the objective and the scenario know them."""
    scenario = server.scenario
    heads = scenario.personal_scores.values() if update.task == "score" else [""]
    splits = {f"{head}{split}": split for head in heads for split in ("val", "test")}
    odd = [k for k in update.metrics if k.partition("/")[0] not in splits]
    if odd:
        return f"metric {odd[0]} belongs to no split"
    for name, split in splits.items():
        found = scores_of(update.metrics, name)
        cells = server.net.classes if split == "test" and scenario.confusion else 0
        if problem := scenario.task.wrong_score(found, cells):
            return f"{name}: {problem}"
        if not found["count"] and (split == "test" or scenario.selection == "validation"):
            return f"{name}: count is 0, and every site has samples there"
    return ""


def shown(value: Any) -> str:
    """A value that may be anything, shortened; numbers of thousands of digits cannot be printed."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 100 else f"{text[:100]}..."


def _too_large(server: Server, update: Update) -> str:
    limit = server.policy.max_bytes or 4 * server.nbytes + SLACK
    size = sum(tree.nbytes(getattr(update, section)) for section in update.SECTIONS)
    return f"it has {size} bytes, and max_bytes is {limit}" if size > limit else ""


def _wrong_entries(
    section: str, found: Mapping[str, Tensor], wanted: Mapping[str, EntrySpec]
) -> str:
    if found.keys() != wanted.keys():
        missing = sorted(wanted.keys() - found.keys())
        odd = sorted(found.keys() - wanted.keys())
        many = f"{len(missing)} missing and {len(odd)} unexpected {section} entries"
        return f"{many}, such as {(missing + odd)[0]}"
    for key, value in found.items():
        shape, dtype = wanted[key]
        if value.shape != shape:
            return f"{key} has shape {tuple(value.shape)}, not {shape}"
        if value.dtype is not dtype:
            return f"{key} is {value.dtype}, not {dtype}"
    return ""


def _wrong_values(server: Server, update: Update, *, examined: bool) -> str:
    """Numbers that are not finite, too large, or out of their range."""
    changed = update.task == "train" and bool(server.method.channels)  # after it was examined
    if (changed or not examined) and (problem := not_finite(update.shared | update.personal)):
        return problem
    if update.payload and (problem := server.uploads[update.task].wrong_range(update.payload)):
        return problem
    return "" if examined else _wrong_buffers(server, update, update.shared | update.personal)


def _wrong_buffers(server: Server, update: Update, entries: Mapping[str, Tensor]) -> str:
    """Variances are not negative; counters grow by no more than the batches of a visit."""
    for key in server.variances & entries.keys():
        if entries[key].numel() and float(entries[key].min()) < 0:
            return f"{key} has a negative variance"
    grown = BUDGETS * visit_steps(server.scenario, update.examples)
    for key in server.counters & entries.keys():
        sent = server.shared.get(key, server.initial[key])
        most = int(sent.max()) + grown if key in server.shared else 2**53
        low, high = map(int, entries[key].aminmax()) if entries[key].numel() else (0, 0)
        if not 0 <= low <= high <= most:
            return f"{key} is {shown(entries[key].tolist())}, not from 0 to {most}"
    return ""
