"""A site that fails, hangs, leaves or answers nonsense: what the server does without it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from fedshift.errors import ConfigError, RunError
from fedshift.message import Broadcast, Lost, Update
from fedshift.validate import objection

if TYPE_CHECKING:
    from fedshift.server import Observer, Server, Transport

OnLoss = Literal["fail", "skip", "wait"]
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 10.0  # seconds between two tries, doubled each time


@dataclass(frozen=True)
class Policy:
    """What to do without a site's answer, and how large an answer may be.

    It belongs to how a run is played, not to what it is: as long as every site answers, every
    policy gives the same bits. Who was lost is in the ledger and in the summary.

    ``fail`` stops the run, ``skip`` goes on with those who answered, ``wait`` writes to the lost
    ones again until they answer or ``timeout`` is over.
    """

    on_loss: OnLoss = "fail"
    timeout: float | None = None  # seconds that one exchange may take
    min_sites: int = 1  # answers that an exchange needs, or all where fewer are asked
    max_bytes: int | None = None  # of one update; None: four times the model, plus 16 MiB

    def __post_init__(self) -> None:
        if self.on_loss not in get_args(OnLoss):
            raise ConfigError(f"on_loss is {self.on_loss!r}; it takes fail, skip or wait")
        for name in ("timeout", "min_sites", "max_bytes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value}; it must be more than 0")
        if self.on_loss == "wait" and self.timeout is None:
            raise ConfigError("on_loss=wait has no end; add --timeout with the seconds to wait")

    @property
    def lenient(self) -> bool:
        """Whether a run outlives the loss of a site."""
        return self.on_loss != "fail"


def answers(
    server: Server,
    transport: Transport,
    mail: Sequence[Broadcast],
    observer: Observer,
    *,
    at_least: int | None = None,
) -> Iterator[Update]:
    """One checked update per message, in the order of the mail; losses by the server's policy."""
    policy, retry = server.policy, Retry(server.policy)
    due, held = deque(m.client for m in mail), Held(transport.borrows)
    lost: dict[str, Lost] = {}
    waiting = list(mail)
    while waiting:
        for reply in delivered(server, transport, waiting, observer):
            if isinstance(reply, Lost):
                lost[reply.client] = reply
                if policy.on_loss == "fail":
                    raise RunError(f"{told(reply)}; mend it and --resume, or see --on-loss")
                if policy.on_loss == "skip":
                    due.remove(reply.client)
            else:
                lost.pop(reply.client, None)
                held.of[reply.client] = reply
            while due and due[0] in held.of:
                yield held.of.pop(due.popleft())
            held.before_the_next()
        waiting = [m for m in mail if m.client in lost and policy.on_loss == "wait"]
        retry.pause([lost[m.client] for m in waiting])
    wanted = min(policy.min_sites if at_least is None else at_least, len(mail))
    if len(mail) - len(lost) < wanted:
        raise RunError(
            f"{len(mail) - len(lost)} of {len(mail)} sites answered, and min_sites is {wanted}; "
            + "; ".join(map(told, lost.values()))
        )


class Held:
    """Replies that wait for their turn, by client; copied before their memory is written again."""

    def __init__(self, borrows: int) -> None:
        self.of: dict[str, Update] = {}
        self._borrows = borrows
        self._left: dict[str, int] = {}  # how many more may be asked for

    def before_the_next(self) -> None:
        """Another reply is going to be asked for."""
        for client in self.of if self._borrows else ():
            self._left[client] = self._left.get(client, self._borrows) - 1
            if self._left[client] == 0:
                self.of[client] = self.of[client].own()


def told(lost: Lost) -> str:
    """Who was lost where and why, in one line."""
    return f"round {lost.round}, {lost.task}: client {lost.client} is lost: {lost.reason}"


def delivered(
    server: Server, transport: Transport, mail: Sequence[Broadcast], observer: Observer
) -> Iterator[Update | Lost]:
    """The reply to every message, checked; a bad one and none at all are losses too."""
    asked = {message.client: message for message in mail}
    for message in mail:
        observer.sent(message)
    for raw in transport.deliver(mail):
        if isinstance(raw, Update):
            observer.received(raw)
        answered = asked.pop(raw.client, None)
        reply = judged(server, answered, raw, examined=transport.examines)
        if isinstance(reply, Lost):
            observer.lost(reply)
        if answered is not None:
            yield reply
    for silent in asked.values():
        nothing = Lost(silent.client, silent.task, silent.round, "no answer")
        observer.lost(nothing)
        yield nothing


def judged(
    server: Server, asked: Broadcast | None, reply: Update | Lost, *, examined: bool = False
) -> Update | Lost:
    """The reply itself, or a loss if it is refused."""
    if isinstance(reply, Lost):
        return reply
    reason = "nobody asked for it"
    if asked:
        reason = objection(server, asked, reply, examined=examined)
    if not reason:
        return reply
    task, round_ = (asked.task, asked.round) if asked else (reply.task, reply.round)
    return Lost(reply.client, task, round_, f"update refused: {reason}")


def riders(
    server: Server, mail: Sequence[Broadcast], replies: Sequence[Update], observer: Observer
) -> list[Update]:
    """Replies to mail that rode with other mail, checked; a loss there ends or leaves the run."""
    asked = {(message.client, message.task): message for message in mail}
    for message in mail:
        observer.sent(message)
    found: list[Update | Lost] = []
    for raw in replies:
        observer.received(raw)
        found.append(judged(server, asked.pop((raw.client, raw.task), None), raw))
    found += [Lost(m.client, m.task, m.round, "no answer") for m in asked.values()]
    for lost in [reply for reply in found if isinstance(reply, Lost)]:
        observer.lost(lost)
        if server.policy.on_loss != "skip":
            raise RunError(f"{told(lost)}; mend it and --resume, or see --on-loss")
    return [reply for reply in found if isinstance(reply, Update)]


class Retry:
    """Pauses between two tries, until the policy's time is over."""

    def __init__(self, policy: Policy) -> None:
        self.timeout, self.seconds = policy.timeout or 0.0, FIRST_PAUSE
        self.began = time.monotonic()

    def pause(self, lost: Sequence[Lost]) -> None:
        """Sleep before the next try, or raise if there is no time for one."""
        if not lost:
            return
        if time.monotonic() - self.began + self.seconds > self.timeout:
            names = "; ".join(map(told, lost))
            raise RunError(f"waited {self.timeout:g} s in vain; {names}; mend it and --resume")
        time.sleep(self.seconds)
        self.seconds = min(2 * self.seconds, LONGEST_PAUSE)
