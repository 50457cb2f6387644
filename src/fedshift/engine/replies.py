"""Replies to messages: put in order and checked, and what happens when a site is lost.

``engine.round`` sends all messages through :func:`answers`; ``experiment.session`` checks replies
to piggybacked messages with :func:`attached`. No part may ever see a reply that was not checked
(``engine.reply_checks``), because it may come from another machine, which can fail, hang, leave or
send anything.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence

from fedshift.base.errors import RunError
from fedshift.core.message import UNASKED, Broadcast, Lost, Update
from fedshift.core.server import Observer, Policy, Server, Transport
from fedshift.engine.reply_checks import why_rejected

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
