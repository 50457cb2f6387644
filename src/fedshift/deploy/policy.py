"""A site's own rules: what it answers, whatever the server asks, and how much privacy it spends.

The server chooses method, scenario and requests; a site that trusts it in all of that needs none
of this. ``policy.toml`` in the site's folder says what the site requires instead, and the site's
worker (``deploy.flower.apps``) asks :class:`Guard` before and after every visit. What was answered
is in ``requests.jsonl``, on the disk before anything leaves, over all runs: nothing that a server
says or forgets may give privacy back. A refused request is an error at the server, a line of the
site's log and a line of that file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Protocol, get_args, runtime_checkable

from pydantic import Field, field_validator

from fedshift.base.errors import ConfigError, NotAllowedError
from fedshift.core.config import RunConfig
from fedshift.core.message import Broadcast, Task, Update
from fedshift.core.method import Method
from fedshift.core.scenario import Frozen
from fedshift.deploy.folders import SitePaths, read_settings, write_settings
from fedshift.engine.preflight import require_secret
from fedshift.privacy.accountant import epsilon_of_site
from fedshift.runs.durable_lines import DurableLines

TASKS: tuple[str, ...] = get_args(Task)
SPENT = "preparation_epsilon"  # in requests.jsonl: statistics of rows were told with noise
LARGEST = 1e9  # noise, in units of the clip, that anybody could mean


@runtime_checkable
class NoisyAtSite(Protocol):
    """A part that adds noise before an update leaves the site: its updates can be counted."""

    @property
    def noise_at_site(self) -> float:
        """Standard deviation of the noise, in units of the clip."""
        ...


class SitePolicy(Frozen):
    """What a site requires and allows.

    ``require`` names parts that a run's method must have. ``epsilon`` is the most that the site
    spends, at ``delta``, over all runs and for ever; a run whose updates leave without noise is
    then refused. ``repeats`` is how often one round of one run is answered where updates are noisy:
    a server that asks again and again could average the noise away. ``tasks`` are the requests that
    are answered, ``payloads`` the parts whose payload may leave (absent: any part's).
    ``preparation_epsilon`` is the most that statistics of the site's table spend, over all runs:
    they leave with noise only, and the unit is one row, not the site.
    """

    require: tuple[str, ...] = ()
    epsilon: Annotated[float, Field(gt=0)] | None = None
    preparation_epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    repeats: Annotated[int, Field(ge=1)] = 3
    tasks: tuple[str, ...] = tuple(task for task in TASKS if task != "donate")
    payloads: tuple[str, ...] | None = None
    tell_domain: bool = True  # where the run's scenario allows domain_ids

    @field_validator("tasks")
    @classmethod
    def _known(cls, tasks: tuple[str, ...]) -> tuple[str, ...]:
        for task in tasks:
            if task not in TASKS:
                raise ValueError(f"no such task; known: {', '.join(TASKS)}")
        return tasks


HEAD = "What this site answers, whatever the server asks; `fedshift site check` reads it."


def write_policy(path: Path, policy: SitePolicy) -> None:
    """Write a policy as TOML."""
    write_settings(path, policy, HEAD)


def read_policy(paths: SitePaths) -> SitePolicy:
    """The site's policy; the default one if there is no file."""
    if not paths.policy.exists():
        return SitePolicy()
    return read_settings(paths.policy, SitePolicy, "fedshift site init")


def describe_policy(paths: SitePaths) -> str:
    """The policy and what has been spent of it, as one line."""
    policy = read_policy(paths)
    spent = spent_by_site(DurableLines(paths.requests))
    words = [f"requires {', '.join(policy.require) or 'no part'}"]
    if policy.epsilon is not None:
        told = epsilon_of_site(spent, delta=policy.delta)
        words.append(f"spent epsilon {told:.3g} of {policy.epsilon:g} at delta {policy.delta:g}")
    elif spent:
        words.append(f"{sum(spent.values())} noisy updates sent, no limit")
    if rows := told_of_rows(DurableLines(paths.requests)):
        limit = policy.preparation_epsilon
        most = "no limit" if limit is None else f"of {limit:g}"
        words.append(f"statistics of rows spent epsilon {rows:.3g}, {most}")
    words.append(f"answers {', '.join(policy.tasks) or 'nothing'}")
    return "; ".join(words)


def spent_by_site(lines: DurableLines) -> Counter[float]:
    """Noisy updates that this site was about to send, by their noise."""
    out: Counter[float] = Counter()
    for row in lines.read():
        noise = row.get("noise")
        if isinstance(noise, bool) or not isinstance(noise, int | float | None):
            raise lines.damaged()
        if noise is not None and not 0 <= noise < LARGEST:
            raise lines.damaged()
        if noise is not None:
            out[float(noise)] += 1
    return out


class Guard:
    """Applies a site's policy to one run's requests."""

    def __init__(self, paths: SitePaths, run: str, method: Method) -> None:
        self.policy, self.run, self.method = read_policy(paths), run, method
        self.source = paths.policy
        self.lines = DurableLines(paths.requests)
        self.private = [part.name for part in method.parts if part.gives_privacy]

    def before(self, message: Broadcast) -> None:
        """Raise if a request must not be answered; else note it, on the disk, as answered."""
        with self.lines.alone():
            noise = self._noise() if message.task == "train" else None
            reason = self._objection(message, noise)
            row = self._row(message) | ({"noise": noise} if noise is not None else {})
            self.lines.append(self._row(message) | {"refused": reason} if reason else row)
        if reason:
            raise NotAllowedError(f"client {message.client} refuses {message.task}: {reason}")

    def after(self, message: Broadcast, update: Update) -> Update:
        """The reply as it may leave; raises if it holds payload that must not."""
        allowed = self.policy.payloads
        channels = {channel.name for channel in self.method.channels}
        for owner in sorted({key.partition("/")[0] for key in update.payload}):
            reason = ""
            if allowed is not None and owner not in allowed:
                reason = f"payload of {owner} may not leave; {self._mend('payloads')}"
            elif self.private and owner not in channels:
                reason = f"payload of {owner} is not covered by {self.private[0]}; leave one out"
            if reason:
                with self.lines.alone():
                    self.lines.append(self._row(message) | {"refused": reason})
                raise NotAllowedError(f"client {message.client} refuses {message.task}: {reason}")
        return update if self.policy.tell_domain else replace(update, facts={})

    def _row(self, message: Broadcast) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return {"time": now, "run": self.run, "round": message.round, "task": message.task}

    def _noise(self) -> float | None:
        """Noise that an update of this method has when it leaves; None if it has none."""
        found = [p.noise_at_site for p in self.method.parts if isinstance(p, NoisyAtSite)]
        return max(found, default=None)

    def _objection(self, message: Broadcast, noise: float | None) -> str:
        """The first reason not to answer; empty if there is none."""
        policy = self.policy
        try:
            require_secret(self.method)
        except ConfigError as error:
            return str(error)
        if message.task not in policy.tasks:
            return f"it is not one of the tasks of this site; {self._mend('tasks')}"
        present = {part.name for part in self.method.parts}
        if missing := [name for name in policy.require if name not in present]:
            return (
                f"this site requires {missing[0]}, and the method has "
                f"{', '.join(sorted(present)) or 'no part'}; add {missing[0]}[randomness=system]"
            )
        return self._overspent(message, noise) if message.task == "train" else ""

    def _overspent(self, message: Broadcast, noise: float | None) -> str:
        policy = self.policy
        if policy.epsilon is not None and noise is None:
            return (
                f"updates of this method leave without noise, and this site spends at most "
                f"epsilon {policy.epsilon:g}; add local-dp[randomness=system]"
            )
        if noise is None:
            return ""
        again = asked_before(self.lines.read(), self.run, message.round)
        if again >= policy.repeats:
            return (
                f"round {message.round} was answered {again} times, which is what this site "
                f"allows; {self._mend('repeats')}"
            )
        after = spent_by_site(self.lines) + Counter([noise])
        told = epsilon_of_site(after, delta=policy.delta)
        if told > (math.inf if policy.epsilon is None else policy.epsilon):
            return (
                f"epsilon would be {told:.3g} after this update, and this site spends at most "
                f"{policy.epsilon:g}; take more noise or fewer rounds, or {self._mend('epsilon')}"
            )
        return ""

    def _mend(self, key: str) -> str:
        return f"its operator can change {key} in {self.source}"


def require_telling(paths: SitePaths, run: RunConfig, step: str, epsilon: float | None) -> None:
    """Raise if this site does not tell about its table; else note it, on the disk, as told.

    Without ``epsilon`` counts and sums leave without noise and masks. So a site that limits its
    epsilon, or is asked for a method that promises privacy, tells them only if ``payloads`` names
    ``preparation``. Noise protects rows and no site, so it does not change that; the policy's
    ``preparation_epsilon`` does, and then nothing leaves without noise or beyond it.
    """
    policy, lines = read_policy(paths), DurableLines(paths.requests)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    row: dict[str, Any] = {"time": now, "run": run.name, "round": 0, "task": f"preparation: {step}"}
    with lines.alone():
        reason = _not_told(policy, run.build(), epsilon)
        reason = reason or _told_enough(policy, lines, run.name, epsilon)
        reason = reason and f"{reason}; {paths.policy} says so"
        spent = {SPENT: epsilon} if step == "count" and epsilon is not None else {}
        lines.append(row | ({"refused": reason} if reason else spent))
    if reason:
        raise NotAllowedError(f"this site refuses {row['task']}: {reason}")


def _not_told(policy: SitePolicy, method: Method, epsilon: float | None) -> str:
    """Why this site tells nothing of its table; empty if it may."""
    private = [part.name for part in method.parts if part.gives_privacy]
    remedy = (
        "name preparation among payloads, set preparation_epsilon and data.epsilon, or give the "
        "site a preparation made elsewhere"
    )
    if policy.payloads is not None:
        named = "preparation" in policy.payloads
        return "" if named else "payload of preparation may not leave; name it among payloads"
    if policy.preparation_epsilon is not None:
        return ""
    if policy.epsilon is not None:
        how = "without noise" if epsilon is None else "with noise for rows, not for the site"
        return (
            f"what a preparation needs leaves {how}, and this site spends at most epsilon "
            f"{policy.epsilon:g}; {remedy}"
        )
    if private:
        return f"what a preparation needs is not covered by {private[0]}; {remedy}"
    return ""


def _told_enough(policy: SitePolicy, lines: DurableLines, run: str, epsilon: float | None) -> str:
    """Why statistics must not leave with this epsilon; empty if they may."""
    limit = policy.preparation_epsilon
    if epsilon is None:
        return "" if limit is None else (
            f"statistics of its table leave with an epsilon of at most {limit:g}, and this run has "
            "none; set data.epsilon"
        )  # fmt: skip
    again = sum(SPENT in row and row.get("run") == run for row in lines.read())
    if again >= policy.repeats:
        return f"its table was counted {again} times for this run, which is what repeats allows"
    spent = told_of_rows(lines)
    if limit is not None and spent + epsilon > limit * (1 + 1e-9):
        return (
            f"statistics of its table would have spent epsilon {spent + epsilon:g}, and "
            f"preparation_epsilon is {limit:g}; take a smaller data.epsilon, or raise it"
        )
    return ""


def told_of_rows(lines: DurableLines) -> float:
    """Epsilon of all statistics of its rows that this site was about to tell: it adds up."""
    found = [row[SPENT] for row in lines.read() if SPENT in row]
    if any(isinstance(e, bool) or not isinstance(e, int | float) or not e > 0 for e in found):
        raise lines.damaged()
    return math.fsum(found)


def asked_before(rows: Sequence[Mapping[str, Any]], run: str, round_: int) -> int:
    """How often a round of a run was answered with a noisy update."""
    return sum(
        "noise" in row and (row.get("run"), row.get("round")) == (run, round_) for row in rows
    )
