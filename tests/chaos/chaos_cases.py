"""Cases of chaos: what a seed does to a run, and whether the run survives it unchanged.

A case is named ``FAMILY/TRANSPORT/NUMBER``; name and seed decide everything about it, so that one
command repeats it. Families: ``kills`` interrupts short runs again and again, ``mixed`` lets
everything happen to longer ones, ``damage`` changes a file of an interrupted run. After each
interruption the same command with ``--resume`` goes on, until the run is finished. Then it must
equal the run that nothing happened to.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from chaos_attempts import attempt, workers_left
from chaos_results import differences, undercounted, untold

TRANSPORTS = ("inprocess", "pool", "wire", "flower")
FAMILIES = {"kills": 3, "mixed": 10, "damage": 3}  # and the rounds of their runs
# Long runs are of methods that differ in what they keep and send.
LONG = ("fedavg", "scaffold", "fedbn", "local-dp", "fdse", "secure-aggregation")
KILLS = ("kill-file",) * 4 + ("tear",) * 3 + ("kill-message",) * 3 + ("kill-time",) * 2
KILLS += ("term-file", "term-message", "term-time")
WORKERS = ("kill-worker",) * 3 + ("stop-worker",) * 2
MIXED = ("messages",) * 8 + ("kill-file", "tear", "kill-message", "term-message", "full", "disk")
MIXED += ("damage",)
DAMAGES = ("delete", "empty", "cut", "line", "flip")
NONE = {"kind": "none"}
KILLED = {-9, -25}  # SIGKILL; SIGXFSZ, when a write is torn
ALLOWED = dict.fromkeys(("kill-file", "kill-message", "kill-time"), KILLED)
ALLOWED |= {kind: {143, -15} for kind in ("term-file", "term-message", "term-time")}  # -15: so soon
ALLOWED |= {kind: {2} for kind in ("full", "messages", "disk", "kill-worker")} | {"tear": KILLED}
LONGEST = 12  # attempts


@dataclass
class Outcome:
    """What came of a case; ``problems`` is empty if every promise was kept."""

    case: str
    method: str
    rounds: int
    kills: int = 0
    terminations: int = 0
    workers: int = 0
    messages: int = 0
    refusals: list[str] = field(default_factory=list)
    damages: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class Whole:
    """A run that nothing happened to, and how much there was to interrupt."""

    folder: Path
    files: int
    messages: int
    seconds: float


class Chaos:
    """Plays cases in a folder; runs that nothing happens to are made once and kept."""

    def __init__(self, folder: Path, methods, seed: int) -> None:
        self.folder, self.methods, self.seed = folder, list(methods), seed
        self.wholes: dict[tuple, Whole] = {}
        self.firsts: dict[tuple, Whole] = {}  # whatever their transport

    def play(self, case: str) -> Outcome:
        """Play one case to its end."""
        family, transport, number = case.split("/")
        draw = random.Random(f"{self.seed}/{case}")
        known = [m for m in LONG if m in self.methods] if family == "mixed" else []
        known = known or self.methods
        method = known[int(number) % len(known)]
        out = Outcome(case, method, FAMILIES[family])
        try:
            whole = self.whole(method, transport, out.rounds)
        except RuntimeError as error:
            out.problems.append(str(error))
            return out
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            run = Run(self, Path(folder), whole, out, transport, draw)
            {"kills": run.kills, "mixed": run.mixed, "damage": run.damage}[family]()
            run.judge()
        return out

    def whole(self, method: str, transport: str, rounds: int) -> Whole:
        key = method, transport, rounds
        if key not in self.wholes:
            self.wholes[key] = self._whole(*key)
            first = self.firsts.setdefault((method, rounds), self.wholes[key])
            odd = differences(first.folder, self.wholes[key].folder, untroubled=False)
            if odd:
                raise RuntimeError(f"{key} differs from its first transport: {odd[:3]}")
        return self.wholes[key]

    def _whole(self, method: str, transport: str, rounds: int) -> Whole:
        beside = self.folder / "whole" / f"{method}-{transport}-{rounds}".replace(" ", "")
        (beside / "tmp").mkdir(parents=True)
        write_run_file(method, rounds, beside / "experiment.toml")
        words = command(beside, transport)
        ended = attempt(words, NONE, beside / "run", beside)
        if ended.code:
            raise RuntimeError(f"{method} does not run on {transport}: {ended.said}")
        files, messages = map(int, (beside / "counted").read_text().split())
        return Whole(beside / "run", files, messages, ended.seconds)


def command(beside: Path, transport: str) -> list[str]:
    words = ["run", beside / "experiment.toml", "--out", beside / "run", "--quiet"]
    return [*map(str, words), *over(transport)]


def over(transport: str) -> list[str]:
    workers = ["--workers", "2"] if transport in ("pool", "flower") else []
    return ["--transport", transport, *workers]


def write_run_file(method: str, rounds: int, file: Path) -> None:
    """The run file of a tiny run, written by a process of its own: it may start threads."""
    pid = os.fork()
    if pid == 0:
        from fedshift.engine.compute import Compute
        from fedshift.experiment.identity import configure_run
        from fedshift.runs.run_file import write_run_file as write
        from fedshift.testing import granting, tiny_scenario

        small = {"epochs": None, "steps": 1, "protocols": ("personal", "global")}
        scenario = tiny_scenario(**(small | {"rounds": rounds} | granting(method)))
        write(file.parent, configure_run(method, scenario)[0], Compute())
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError(f"{method}: no run file")


class Run:
    """One run under attack."""

    def __init__(self, chaos: Chaos, beside: Path, whole: Whole, out: Outcome, transport, draw):
        self.beside, self.whole, self.out, self.draw = beside, whole, out, draw
        self.transport, self.seed = transport, chaos.seed
        self.run, self.mounted = beside / "run", False
        (beside / "tmp").mkdir()
        shutil.copy(whole.folder.parent / "experiment.toml", beside)
        self.words = command(beside, transport)
        self.untroubled, self.attempts, self.done = True, 0, False

    # what happens
    def kills(self) -> None:
        """Up to five interruptions, then the rest."""
        kinds = KILLS + (WORKERS if self.transport == "pool" else ())
        for _ in range(self.draw.randint(2, 5)):
            self.attempt(self.fault(self.draw.choice(kinds)))
        self.finish()

    def mixed(self) -> None:
        """Everything at once: troubled messages, kills, full disks, damaged files."""
        kinds = MIXED + (WORKERS if self.transport == "pool" else ())
        for _ in range(self.draw.randint(3, 6)):
            kind = self.draw.choice(kinds)
            if kind == "damage":
                self.harm_file()
            elif kind == "disk":
                self.fill_disk()
            else:
                self.attempt(self.fault(kind))
        self.finish()

    def damage(self) -> None:
        """A run that was killed in the midst, and one of its files changed."""
        fault = self.fault("kill-file")
        self.attempt(fault | {"file": max(fault["file"], self.whole.files // 3)})
        self.harm_file()
        self.finish()

    def fault(self, kind: str) -> dict:
        """A fault of this kind, somewhere in what is left of the run, by the seed."""
        part = self.draw.random() * (0.9 if self.attempts == 0 else 0.6)
        fault = {"kind": kind, "bytes": self.draw.randint(0, 3000)}
        if kind.endswith("-time"):
            fault["after"] = part * self.whole.seconds
        elif kind in ("kill-message", "term-message", *WORKERS):
            fault["message"] = 1 + int(part * self.whole.messages)
            fault["worker"] = self.draw.randrange(2)
        elif kind == "messages":
            fault["seed"] = f"{self.seed}/{self.out.case}/{self.attempts}"
        else:
            fault["file"] = 1 + int(part * self.whole.files)
        return fault

    def attempt(self, fault: dict) -> None:
        """The command once, with a fault; what it must not do is noted as a problem."""
        if self.done:
            return
        self.attempts += 1
        words = list(self.words)
        if fault["kind"] == "messages":
            self.untroubled = False
            patient = self.draw.random() < 0.7
            words += ["--on-loss", "wait", "--timeout", "60"] if patient else []
        before = len(self.journal())
        ended = attempt([*words, *self.resume()], fault, self.run, self.beside)
        if ended.code == 2 and "leave out --resume" in ended.said:
            ended = attempt(words, fault, self.run, self.beside)
        self.out.seconds += ended.seconds
        self.out.story.append(f"{json.dumps(fault)} -> {ended.code}")
        self.count(fault, ended, self.journal()[before:])
        self.check(fault, ended)
        self.done = ended.code == 0

    def resume(self) -> list[str]:
        return ["--resume"] if self.attempts > 1 else []

    def count(self, fault: dict, ended, journal) -> None:
        self.out.kills += ended.code in KILLED
        self.out.terminations += ended.code == 143
        self.out.workers += fault["kind"] in WORKERS and any(w[0] == "fault" for w in journal)
        self.out.messages += sum(w[0] in ("lost", "harmless") for w in journal)

    def check(self, fault: dict, ended) -> None:
        """Note what an attempt must not do: hang, crash, say more than a line, leave litter."""
        kind = fault["kind"]
        allowed = {0} | ALLOWED.get(kind, set())
        if ended.hung:
            self.problem(f"{kind}: hangs")
        elif ended.code not in allowed:
            self.problem(f"{kind}: exit code {ended.code}: {ended.said[-800:]}")
        elif ended.code == 2 and not ended.refused:
            self.problem(f"{kind}: not one line: {ended.said[-800:]}")
        elif ended.code == 2:
            self.out.refusals.append(f"{kind}: {ended.lines[0]}")
        self.clear(kind, ended)

    def clear(self, kind: str, ended) -> None:
        """Remove temporary folders of a killed process; any other leaves none."""
        litter = list((self.beside / "tmp").glob("fedshift-*"))
        if ended.code in (0, 2, 143) and litter:
            self.problem(f"{kind}: it left a temporary folder")
        for folder in litter:
            shutil.rmtree(folder, ignore_errors=True)

    def problem(self, text: str) -> None:
        self.out.problems.append(text)

    def finish(self) -> None:
        """Go on until the run is done."""
        while not self.done and self.attempts < LONGEST:
            before = len(self.out.problems)
            self.attempt(NONE)
            if len(self.out.problems) > before:
                return
        if not self.done:
            self.problem("it never ended")

    def harm_file(self) -> None:
        """Change one file; the run refuses to go on, or ends as if nothing had happened."""
        files = [p for p in sorted(self.run.rglob("*")) if p.is_file() and p.name[0] != "."]
        if self.done or not files:
            return
        file, how = self.draw.choice(files), self.draw.choice(DAMAGES)
        kept = self.beside / "kept"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(self.run, kept)
        what = harm(file, how, self.draw)
        if not what:
            return
        name = str(file.relative_to(self.run))
        self.attempts += 1
        words = ["run", "--resume", "--out", str(self.run), "--quiet"]
        words += over(self.transport)
        ended = attempt(words, NONE, self.run, self.beside)
        said = ended.lines[-1] if ended.lines else ""
        self.out.story.append(f"{name}: {what} -> {ended.code} {said}")
        if ended.hung or ended.code not in (0, 2) or (ended.code == 2 and not ended.refused):
            self.problem(f"{name}: {what}: exit code {ended.code}: {ended.said[-800:]}")
        elif ended.code == 0:
            odd = differences(self.whole.folder, self.run, untroubled=self.untroubled)
            verdict = "another result" if odd else "same result"
            self.out.damages.append(f"{name}: {what}: {verdict}")
            if odd:
                self.problem(f"{name}: {what}: silently another result, in {odd[:4]}")
            self.done = True
        else:
            self.out.damages.append(f"{name}: {what}: refused")
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(kept / name, file)  # and nothing else: what was spent since stays spent

    def fill_disk(self) -> None:
        """The next attempt runs on a disk that becomes full, if this machine can mount one."""
        if self.done:
            return
        small = self.beside / "disk"
        small.mkdir(exist_ok=True)
        if not mount(small):
            self.attempt(self.fault("full"))
            return
        try:
            if self.run.exists():
                shutil.copytree(self.run, small / "run")
            free = os.statvfs(small)
            left = self.draw.randint(4, 200) * 1024
            (small / "ballast").write_bytes(bytes(max(0, free.f_bavail * free.f_bsize - left)))
            words, run = self.words, self.run
            self.run = small / "run"
            self.words = [str(self.run) if w == str(run) else w for w in words]
            self.attempt({"kind": "disk", "left": left})
            self.words, self.run = words, run
            shutil.rmtree(run, ignore_errors=True)
            if (small / "run").exists():
                shutil.copytree(small / "run", run)
        finally:
            subprocess.run(["umount", str(small)], check=True)

    # what came of it
    def journal(self) -> list[list[str]]:
        file = self.beside / "journal"
        return [x.split() for x in file.read_text().splitlines()] if file.exists() else []

    def judge(self) -> None:
        """Whether the run is the one that nothing happened to."""
        if not self.done:
            return
        if odd := differences(self.whole.folder, self.run, untroubled=self.untroubled):
            self.problem(f"another result, in {odd[:4]}")
        whole = self.attempts == 1 and not self.untroubled and self.transport != "flower"
        if whole and (odd := untold(self.run, self.journal())):
            self.problem(f"the ledger tells another story: {odd[:3]}")
        if few := undercounted(self.run, self.journal()):
            self.problem(f"privacy of {few} is undercounted")
        if self.transport == "pool" and (left := workers_left(self.beside)):
            self.problem(f"worker processes {left} are still there")


def harm(file: Path, how: str, draw) -> str:
    """Damage a file; returns what was done, empty if there was nothing to do."""
    blob = file.read_bytes()
    if how == "delete":
        file.unlink()
        return "deleted"
    if how == "empty":
        new, what = b"", "emptied"
    elif how == "cut":
        at = draw.randrange(max(1, len(blob)))
        new, what = blob[:at], f"cut to {at} of {len(blob)} bytes"
    elif how == "line":
        lines = blob.splitlines(keepends=True)
        at = draw.randrange(max(1, len(lines)))
        new, what = b"".join(lines[:at] + lines[at + 1 :]), f"without line {at + 1}"
    else:
        at, bit = draw.randrange(max(1, len(blob))), draw.randrange(8)
        new, what = bytearray(blob), f"bit {bit} of byte {at} flipped"
        if blob:
            new[at] ^= 1 << bit
    file.unlink()  # other names of it, such as those in best/, stay
    file.write_bytes(new)
    return what if bytes(new) != blob else ""


def mount(folder: Path) -> bool:
    """A file system of 3 MiB in ``folder``; False where that is not allowed."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)],
        check=False,
        capture_output=True,
    )
    return done.returncode == 0
