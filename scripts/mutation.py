"""Mutation testing of methods/, privacy/ and core/aggregate.py; makes docs/tables/mutation.md.

A sample of all mutants is run, each against the tests that execute the changed line. The operators
are those of mutmut 3. Its runner is not used: it leaves out decorated classes, and every part of
ours is a decorated dataclass. The runner here changes a copy of the source tree, forks from a
process that has the libraries loaded, and runs pytest in the child. Resumable: results are lines of
runs/mutation/results.jsonl, and a mutant that is there is not run again.

    pip install -c constraints.txt "fedshift[mutation]"
    python scripts/mutation.py cover      # once: which test executes which line; minutes
    python scripts/mutation.py run 400    # mutants in the order of the seeded draw
    python scripts/mutation.py again      # the survivors once more, after tests were added
    python scripts/mutation.py verify     # the tests that killed pass on the source as it is
    python scripts/mutation.py table
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import types
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from mutants import ROOT, Place, plan, sources

WORK = ROOT / "runs" / "mutation"
SHADOW = WORK / "tree"
RESULTS = WORK / "results.jsonl"
KILLER = WORK / "killer"
REVIEWED = ROOT / "scripts" / "mutation.toml"
SUITES = ("tests/methods", "tests/privacy", "tests/core")
MOST = 120  # tests per mutant
CPU = 100  # seconds of a mutant, however busy the machine is
GROUPS = ("core/aggregate.py", "privacy/", "methods/")
KILLED, SURVIVED, TIMEOUT, UNTESTED = "killed", "survived", "timeout", "untested"
BROKEN = "broken"  # pytest itself failed: no result


def cover() -> None:
    """Run the tests once, with the lines that each executes."""
    WORK.mkdir(parents=True, exist_ok=True)
    config = WORK / "coverage.ini"
    wanted = "\n    ".join(f"*/src/fedshift/{g}*" for g in GROUPS)
    config.write_text(f"[run]\ndata_file = {WORK / 'coverage'}\ninclude =\n    {wanted}\n")
    command = [sys.executable, "-m", "pytest", *SUITES, "-q", "-p", "no:cacheprovider", "--cov"]
    command += [f"--cov-config={config}", "--cov-context=test", "--cov-report="]
    subprocess.run(command, cwd=ROOT, check=True)


class Tests:
    """Which tests execute which lines."""

    def __init__(self) -> None:
        from coverage import CoverageData  # noqa: PLC0415  only a run needs it

        data = CoverageData(str(WORK / "coverage"))
        data.read()
        self.by_line: dict[str, dict[int, list[str]]] = {}
        self.size: Counter[str] = Counter()  # lines that a test executes
        for path in data.measured_files():
            file = path.split("/src/fedshift/")[1]
            self.by_line[file] = data.contexts_by_lineno(path)
            for contexts in self.by_line[file].values():
                self.size.update(c.split("|")[0] for c in contexts)

    def of(self, file: str, lines: tuple[int, int]) -> list[str]:
        """Tests that execute one of ``lines``, those with the fewest lines first, at most ``MOST``.

        A test of one function comes before a whole run, so that a mutant dies early.
        """
        known = self.by_line.get(file, {})
        contexts = {c for n in range(lines[0], lines[1] + 1) for c in known.get(n, ())}
        found = {c.split("|")[0] for c in contexts if c and still_there(c)}
        return sorted(found, key=lambda test: (self.size[test], test))[:MOST]

    def added(self) -> list[str]:
        """Files of tests that were not there when lines were measured."""
        known = {test.partition("::")[0] for test in self.size}
        files = sorted(f for suite in SUITES for f in (ROOT / suite).glob("test_*.py"))
        return [name for name in (str(f.relative_to(ROOT)) for f in files) if name not in known]


@cache
def still_there(context: str) -> bool:
    """Whether a test that was measured has not been renamed since."""
    file, _, name = context.split("|", maxsplit=1)[0].partition("::")
    return f"def {name.split('[')[0]}(" in (ROOT / file).read_text()


def shadow() -> None:
    """A copy of the project, so that neither edits nor mutants get in each other's way."""
    shutil.rmtree(SHADOW, ignore_errors=True)
    for name in ("src", "tests", "docs", "examples", "scripts"):
        shutil.copytree(ROOT / name, SHADOW / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "constraints.txt", "README.md", "CHANGELOG.md", "mkdocs.yml"):
        shutil.copy(ROOT / name, SHADOW / name)


def preload() -> None:
    """Import the libraries, which no mutant changes; children inherit them."""
    third = "torch numpy scipy.stats scipy.optimize sklearn pytest hypothesis pydantic safetensors "
    third += "cryptography.hazmat.primitives.ciphers.aead dp_accounting.rdp coverage PIL.Image"
    for name in third.split():
        importlib.import_module(name)
    sys.path.insert(0, str(SHADOW / "src"))
    os.environ["PYTHONPATH"] = str(SHADOW / "src")
    os.chdir(SHADOW)
    importlib.import_module("torch").set_num_threads(1)


def serve(pipe: Any) -> None:
    """A process that also has fedshift and the tests loaded, for mutants inside a function.

    Such a mutant is put into a forked child by giving the function another code object, which all
    who hold the function see; importing everything again would take longer than most tests.
    """
    told = trial([], ["--collect-only", *SUITES], fork=False)
    for file in sources():
        importlib.import_module(dotted(file))
    pipe.send(told)
    while request := pipe.recv():
        file, name, text, tests = request
        pipe.send(trial(tests, change=(file, name, text)))


def dotted(file: str) -> str:
    """Name of a module."""
    return "fedshift." + file.removesuffix(".py").replace("/", ".")


def function(module: Any, name: str) -> types.FunctionType | None:
    """The function behind a qualified name, without what decorators have put around it."""
    found: Any = module
    for part in name.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    for inner in ("__func__", "fget", "func", "__wrapped__"):
        found = getattr(found, inner, found)
    return found if isinstance(found, types.FunctionType) else None


def code_of(code: types.CodeType, name: str) -> types.CodeType | None:
    """The code of a qualified name inside that of a module."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    found = [c if c.co_qualname == name else code_of(c, name) for c in inner]
    return next((c for c in found if c is not None), None)


def swap(file: str, name: str, text: str) -> bool:
    """Give a loaded function the code that it has in ``text``; False if that cannot be done."""
    module = importlib.import_module(dotted(file))
    found, code = function(module, name), code_of(compile(text, str(module.__file__), "exec"), name)
    if not (found and code and found.__code__.co_freevars == code.co_freevars):
        return False
    same = found.__code__.co_qualname == name
    found.__code__ = code
    return same


class Killer:
    """A plugin of pytest that writes down the first test that failed."""

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called for each phase of each test."""
        if report.failed:
            KILLER.write_text(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        """Called for each file; a mutant may break its import."""
        if report.failed:
            KILLER.write_text(report.nodeid)


def trial(
    tests: Sequence[str],
    flags: Sequence[str] = (),
    *,
    change: tuple[str, str, str] | None = None,
    fork: bool = True,
) -> str:
    """Run tests in a child, stopping at the first that fails."""
    KILLER.unlink(missing_ok=True)
    if not fork:
        return SURVIVED if pytest_run([*flags]) == 0 else BROKEN
    child = os.fork()
    if child == 0:
        os.setsid()
        quiet = os.open(WORK / "last.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU, CPU))
        code = 99
        try:
            if change is None or swap(*change):
                code = pytest_run([*flags, *tests])
        finally:
            os._exit(code)
    return outcome(child, time.monotonic() + 8 * CPU)


def pytest_run(words: Sequence[str]) -> int:
    """Exit code of pytest in this process."""
    pytest: Any = sys.modules["pytest"]
    flags = ["-q", "-x", "--tb=line", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    off = ["-p", "no:cacheprovider", "-p", "no:cov", "-p", "no:xdist"]
    return int(pytest.main([*flags, *off, *words], plugins=[Killer()]))


def outcome(child: int, deadline: float) -> str:
    """Wait for the child; what its end says of the mutant."""
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return TIMEOUT
        time.sleep(0.02)
    if os.WIFSIGNALED(status):
        return TIMEOUT if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else KILLED
    if os.WEXITSTATUS(status) == 0:
        return SURVIVED
    unimportable = "ImportError while loading conftest" in (WORK / "last.log").read_text()
    return KILLED if KILLER.exists() or unimportable else BROKEN


def verify() -> None:
    """Run every test that killed a mutant on the source as it is: all have to pass."""
    killers = {row["killer"] for row in results().values() if row["result"] == KILLED}
    shadow()
    preload()
    told = trial(sorted(k for k in killers if "::" in k))
    print(f"{len(killers)} tests that killed mutants, on the source as it is: {told}")
    print((WORK / "last.log").read_text()[-2000:])


def results() -> dict[str, dict[str, Any]]:
    """The last result of each mutant."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return {row["key"]: row for row in map(json.loads, lines)}


def judge(mutants: Iterable[Place], *, again: bool) -> Iterator[dict[str, Any]]:
    """Run mutants, one after another; ``again`` against tests that were added since."""
    shadow()
    known = Tests()
    preload()
    if again:  # few: not worth a second process
        for mutant in mutants:
            yield judged(mutant, known.added(), None) | {"again": True}
        return
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("fork").Process(target=serve, args=(there,))
    server.start()
    if (told := here.recv()) != SURVIVED:
        raise SystemExit(f"the tests cannot be collected: {told}")
    for mutant in mutants:
        measured = known.of(mutant.file, mutant.lines) or known.of(mutant.file, mutant.whole)
        yield judged(mutant, measured, here)
    here.send(None)
    server.join()


def judged(mutant: Place, tests: Sequence[str], server: Any) -> dict[str, Any]:
    """Write one mutant into the copy, run its tests, and take it out again."""
    row = {"key": mutant.key, "file": mutant.file, "line": mutant.lines[0]}
    if not tests:
        return row | {"result": UNTESTED, "tests": 0}
    place = SHADOW / "src" / "fedshift" / mutant.file
    kept, began, result = place.read_text(), time.monotonic(), BROKEN
    try:
        replace(place, mutant.text)  # also for tests that start other processes
        if mutant.function and server:
            server.send((mutant.file, mutant.function, mutant.text, tests))
            result = server.recv()
        if result == BROKEN:
            result = trial(tests)
    finally:
        replace(place, kept)
    took = round(time.monotonic() - began, 1)
    killer = KILLER.read_text() if KILLER.exists() else ""
    return row | {"result": result, "tests": len(tests), "took": took, "killer": killer}


def replace(place: Path, text: str) -> None:
    """Write a source file so that no stale bytecode is taken for it: a time of its own each."""
    place.write_text(text)
    stamp = 1_000_000_000 + time.monotonic_ns() // 1_000_000 % 1_000_000_000
    os.utime(place, (stamp, stamp))


def run(mutants: Sequence[Place], *, again: bool = False) -> None:
    """Judge mutants and append the results."""
    with RESULTS.open("a") as file:
        for i, row in enumerate(judge(mutants, again=again)):
            print(json.dumps(row), file=file, flush=True)
            print(i + 1, len(mutants), row["result"], row.get("took"), row["key"], flush=True)


def wilson(hits: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share (Wilson, 1927), in per cent."""
    if n == 0:
        return 0.0, 100.0
    p, q = hits / n, z * z / n
    middle, half = p + q / 2, z * ((p * (1 - p) + q / 4) / n) ** 0.5
    return 100 * (middle - half) / (1 + q), 100 * (middle + half) / (1 + q)


def group(file: str) -> str:
    """Row of the table: a package, or a single file of methods/."""
    parts = file.split("/")
    return file if parts[0] == "core" else "/".join(parts[: min(2, len(parts) - 1)]) + "/"


def reviewed() -> dict[str, str]:
    """Survivors that nothing can tell from the source as it is, and why."""
    return {row["key"]: row["why"] for row in tomllib.loads(REVIEWED.read_text())["equal"]}


def table() -> str:
    """The table by package, and what became of the survivors."""
    equal, drawn, done = reviewed(), plan(), results()
    there = Counter(sorted(group(m.file) for m in drawn))
    there["all"] = len(drawn)
    told: dict[str, Counter[str]] = defaultdict(Counter)
    for key, row in done.items():
        verdict = row["result"]
        if verdict == SURVIVED and key in equal:
            verdict = "equal"
        if verdict == KILLED and row.get("again"):
            verdict = "later"
        for name in (group(row["file"]), "all"):
            told[name][verdict] += 1
    head = "| package | mutants | drawn | killed | timeout | equivalent | survived, test added | "
    lines = [head + "survived | killed, % (95 % interval) |", "|---|" + "---:|" * 8]
    lines += [line(name, there[name], told[name]) for name in there]
    lines += [
        "",
        f"`python scripts/mutation.py run {len(done)}`; the share is that of the first run,",
    ]
    lines += ["equivalent mutants left out, before tests were added for survivors.", ""]
    lines += ["Equivalent, since nothing that may be observed changes:", ""]
    lines += [f"- {short(k)}: {why}" for k, why in equal.items() if k in done]
    lost = [k for k, r in done.items() if r["result"] in {SURVIVED, UNTESTED} and k not in equal]
    lines += ["", "Survived:", "", *(f"- {short(k)}" for k in lost)] if lost else []
    return "\n".join([*lines, ""])


def line(name: str, there: int, told: Counter[str]) -> str:
    """One row; timeouts count as killed, equivalent mutants not at all.

    Tests that were written for a survivor do not mend the share: it is to tell of those not drawn.
    """
    hits, lost = told[KILLED] + told[TIMEOUT], told[SURVIVED] + told[UNTESTED]
    judged = hits + lost + told["later"]
    low, high = wilson(hits, judged)
    share = f"{100 * hits / judged:.0f} ({low:.0f} to {high:.0f})" if judged else ""
    drawn = judged + told["equal"]
    cells = (there, drawn, told[KILLED], told[TIMEOUT], told["equal"], told["later"], lost, share)
    return f"| `{name}` | " + " | ".join(map(str, cells)) + " |"


def short(key: str) -> str:
    """A mutant in one line."""
    file, scope, change, _ = (
        " ".join(key.split()).split("::", 3) if "::" in key else (key, "", "", "")
    )
    return f"`{file}`, `{scope or 'module'}`: `{change[:160].strip()}`"


def main() -> None:
    """See the module's docstring."""
    task, *rest = sys.argv[1:] or ["table"]
    if task == "cover":
        cover()
    elif task == "run":
        done = results()
        run([m for m in plan()[: int(rest[0])] if m.key not in done])
    elif task == "verify":
        verify()
    elif task == "again":
        lost = {k for k, r in results().items() if r["result"] in {SURVIVED, UNTESTED}}
        alive = lost - reviewed().keys()
        files = sorted({k.split("::")[0] for k in alive})
        run([m for m in plan(files) if m.key in alive], again=True)
    else:
        text = table()
        (ROOT / "docs" / "tables" / "mutation.md").write_text(text)
        print(text)


if __name__ == "__main__":
    main()
