"""Replies to messages: put in order and checked, and what happens when a site is lost.

``engine.round`` sends all messages through :func:`answers`; ``experiment.session`` checks replies
to piggybacked messages with :func:`attached`. No part may ever see a reply that was not checked
here, because it may come from another machine, which can fail, hang, leave or send anything.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set

import torch
from torch import Tensor

from fedshift.base import tree
from fedshift.base.errors import RunError
from fedshift.base.tree import Tree
from fedshift.core.channel import EntrySpec
from fedshift.core.message import UNASKED, Broadcast, Lost, Task, Update
from fedshift.core.net import Scope
from fedshift.core.objective import scores_of
from fedshift.core.server import Observer, Policy, Server, Transport

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 10.0  # seconds between two attempts, doubled each time


def answers(
    server: Server,
    transport: Transport,
    messages: Sequence[Broadcast],
    observer: Observer,
    *,
    at_least: int | None = None,
) -> Iterator[Update]:
    """Yield one checked update per message, in the order of ``messages``.

    A site is lost if it fails, does not reply in time, or sends a reply that is rejected. Then the
    server's policy decides:

    - ``fail``: the run ends with an error at the first loss.
    - ``skip``: the client is left out and the others go on.
    - ``wait``: later replies are held while all lost clients get their message again, after longer
      and longer pauses, until they reply or the policy's timeout is over (an error).

    Fewer replies than ``at_least`` (by default the policy's ``min_sites``) are an error as well. It
    is raised at the end, after the replies that did arrive have been yielded.
    """
    policy, retry = server.policy, Retry(server.policy)
    due, held = deque(m.client for m in messages), ReplyBuffer(transport.reply_lifetime)
    lost: dict[str, Lost] = {}
    waiting = list(messages)
    while waiting:
        for reply in delivered(server, transport, waiting, observer):
            if isinstance(reply, Lost):
                lost[reply.client] = reply
                if policy.on_loss == "fail":
                    raise loss_error(describe_loss(reply))
                if policy.on_loss == "skip":
                    due.remove(reply.client)
            else:
                lost.pop(reply.client, None)
                held.of[reply.client] = reply
            while due and due[0] in held.of:
                yield held.of.pop(due.popleft())
            held.copy_expiring()  # the loop is about to request another reply
        waiting = [m for m in messages if m.client in lost and policy.on_loss == "wait"]
        retry.pause([lost[m.client] for m in waiting])
    wanted = min(policy.min_sites if at_least is None else at_least, len(messages))
    if len(messages) - len(lost) < wanted:
        raise RunError(
            f"{len(messages) - len(lost)} of {len(messages)} sites answered, and min_sites is "
            f"{wanted}; " + "; ".join(map(describe_loss, lost.values()))
        )


class ReplyBuffer:
    """Replies that arrived early and wait for their turn, by client.

    A reply may lie in memory that the transport reuses: the ``reply_lifetime``-th further request
    overwrites it (0: it is never overwritten). Most replies are yielded before that and need no
    copy. The buffer counts the requests since each reply arrived and copies a reply just before the
    one that would overwrite it.
    """

    def __init__(self, reply_lifetime: int) -> None:
        self.of: dict[str, Update] = {}
        self._lifetime = reply_lifetime
        self._left: dict[str, int] = {}  # requests until the reply's memory is overwritten

    def copy_expiring(self) -> None:
        """Call before each further request to the transport: copies what it would overwrite."""
        for client in self.of if self._lifetime else ():
            self._left[client] = self._left.get(client, self._lifetime) - 1
            if self._left[client] == 0:
                self.of[client] = self.of[client].own()


def describe_loss(lost: Lost) -> str:
    """One line for people: round, task, client and reason of a loss."""
    return f"round {lost.round}, {lost.task}: client {lost.client} is lost: {lost.reason}"


def loss_error(reason: str) -> RunError:
    """The error that ends a run when the policy does not allow it to continue after a loss."""
    return RunError(
        f"{reason}; mend it and resume the run, or choose what a loss does with on_loss",
        "resume",
        "on_loss=skip",
    )


def delivered(
    server: Server, transport: Transport, messages: Sequence[Broadcast], observer: Observer
) -> Iterator[Update | Lost]:
    """Send the messages and yield a checked reply or a loss for each, in the order of arrival.

    The observer sees every message and every raw reply, also those that are rejected: the ledger
    counts what crossed the wire. A reply that nobody asked for is recorded as a loss and dropped; a
    message without any reply becomes a loss at the end.
    """
    asked = {message.client: message for message in messages}
    for message in messages:
        observer.sent(message)
    for raw in transport.deliver(messages):
        if isinstance(raw, Update):
            observer.received(raw)
        answered = asked.pop(raw.client, None)
        reply = checked(server, answered, raw, examined=transport.checks_finite)
        if isinstance(reply, Lost):
            observer.lost(reply)
        if answered is not None:
            yield reply
    for silent in asked.values():
        nothing = Lost(silent.client, silent.task, silent.round, "no answer")
        observer.lost(nothing)
        yield nothing


def checked(
    server: Server, asked: Broadcast | None, reply: Update | Lost, *, examined: bool = False
) -> Update | Lost:
    """The reply itself if it is valid, else a loss that says why it was rejected."""
    if isinstance(reply, Lost):
        return reply
    if asked is None:
        return Lost(reply.client, reply.task, reply.round, UNASKED)
    if reason := why_rejected(server, asked, reply, examined=examined):
        return Lost(reply.client, asked.task, asked.round, f"update refused: {reason}")
    return reply


def attached(
    server: Server, messages: Sequence[Broadcast], replies: Sequence[Update], observer: Observer
) -> list[Update]:
    """Check the replies to messages that were piggybacked on training messages.

    They are not sent again, so ``wait`` is treated like ``fail`` here: a loss ends the run unless
    the policy is ``skip``.
    """
    asked = {(message.client, message.task): message for message in messages}
    for message in messages:
        observer.sent(message)
    found: list[Update | Lost] = []
    for raw in replies:
        observer.received(raw)
        found.append(checked(server, asked.pop((raw.client, raw.task), None), raw))
    found += [Lost(m.client, m.task, m.round, "no answer") for m in asked.values()]
    for lost in [reply for reply in found if isinstance(reply, Lost)]:
        observer.lost(lost)
        if server.policy.on_loss != "skip":
            raise loss_error(describe_loss(lost))
    return [reply for reply in found if isinstance(reply, Update)]


class Retry:
    """Growing pauses between two attempts, limited by the policy's timeout."""

    def __init__(self, policy: Policy) -> None:
        self.timeout, self.seconds = policy.timeout or 0.0, FIRST_PAUSE
        self.began = time.monotonic()

    def pause(self, lost: Sequence[Lost]) -> None:
        """Sleep before the next attempt; raise if the timeout would be over by then."""
        if not lost:
            return
        if time.monotonic() - self.began + self.seconds > self.timeout:
            names = "; ".join(map(describe_loss, lost))
            raise RunError(
                f"waited {self.timeout:g} s in vain; {names}; mend it and resume the run", "resume"
            )
        time.sleep(self.seconds)
        self.seconds = min(2 * self.seconds, LONGEST_PAUSE)


SLACK = 16 * 2**20  # bytes that an update may have beyond four times the model's


def why_rejected(
    server: Server, asked: Broadcast, update: Update, *, examined: bool = False
) -> str:
    """The first reason to reject ``update``, or an empty string if it is valid.

    The order goes from cheap to expensive, and each check may rely on those before it. First task,
    round and scalars; then the size, before any tensor is read; then names, shapes and dtypes; only
    then the values, in one pass over the tensors. Parts come last, so that ``reject_reason`` sees a
    well-formed, finite update.

    With ``examined``, our own worker has already checked that the model's entries are finite
    (``Worker._require_finite``), and only the payload's values are looked at.
    """
    changed = update.task == "train" and bool(server.method.channels)  # after it was examined
    sections = ("payload",) if examined and not changed else update.SECTIONS
    return (
        _wrong_task(asked, update)
        or _wrong_scalars(server, update)
        or _too_large(server, update)
        or _wrong_entries("shared", update.shared, expected(server, "shared", update.task))
        or _wrong_entries("personal", update.personal, expected(server, "personal", update.task))
        or _wrong_payload(server, update)
        or _not_finite({k: v for s in sections for k, v in getattr(update, s).items()})
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


def _wrong_task(asked: Broadcast, update: Update) -> str:
    if (update.task, update.round) == (asked.task, asked.round):
        return ""
    return (
        f"it answers {update.task!r} of round {update.round}, not {asked.task!r} of round "
        f"{asked.round}"
    )


def _wrong_scalars(server: Server, update: Update) -> str:
    for name, low in (("examples", 1), ("steps", 0)):
        value = getattr(update, name)
        if type(value) is not int or value < low:
            return f"{name} is {value!r}, not a whole number from {low} on"
    enrolled = server.roster.get(update.client)
    if enrolled and enrolled.examples != update.examples and update.task != "enrol":
        return f"examples is {update.examples}, but it enrolled with {enrolled.examples}"
    for name, number in update.metrics.items():
        if type(number) not in (int, float) or not math.isfinite(number):
            return f"metric {name} is {number!r}, not a finite number"
    for split in ("val", "test") if update.task in ("score", "assess") else ():
        if problem := server.scenario.task.wrong_score(scores_of(update.metrics, split)):
            return f"{split}: {problem}"
    return ""


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


def _wrong_payload(server: Server, update: Update) -> str:
    if update.payload and update.task not in ("enrol", "train", "talk"):
        return f"{update.task!r} has no payload, but {next(iter(update.payload))} is there"
    known = {part.name for part in server.method.parts}
    for key in update.payload:
        owner, _, name = key.partition("/")
        if owner not in known or not name:
            return f"payload {key!r} belongs to no part of the method"
    return ""


def _not_finite(entries: Tree) -> str:
    floats = {key: value for key, value in entries.items() if value.is_floating_point()}
    if not floats:
        return ""
    # One fused pass over all tensors. The norm may overflow although every value is finite, so a
    # norm that is not finite is no proof: then each tensor is looked at by itself.
    if bool(torch.nn.utils.get_total_norm(floats.values()).isfinite()):
        return ""
    bad = next((k for k, v in floats.items() if not bool(v.isfinite().all())), "")
    return f"{bad} has a value that is not finite" if bad else ""
