"""What the texts tell people to type is typed here, or the file and line of it are named.

Commands in blocks and in running text go through the command line itself, in a folder that has the
files they name. What would take long is replaced at its last step: training, once the run is
configured and checked against its data, and what needs a server on another machine, once its
options are read. Options, settings and scenario values that stand alone must exist, and must have
been typed by one of these commands or by another test.
"""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import click
import numpy as np
import pytest
import typer
from matplotlib.figure import Figure
from PIL import Image

import fedshift as api
from fedshift.analyse import Finding
from fedshift.analyse import options_of as options_of_kind
from fedshift.base.errors import DataError, FedshiftError
from fedshift.cli import main
from fedshift.cli.commands import app, split_methods
from fedshift.core.registry import BACKBONES, METHODS
from fedshift.core.registry import build as build_method
from fedshift.core.scenario import Scenario
from fedshift.data.catalogue import Variant
from fedshift.data.federation import Federation
from fedshift.data.library.datasets import add as add_data
from fedshift.data.sources.tables.schema import TableSchema
from fedshift.deploy.folders import ServerSettings, read_site
from fedshift.deploy.setup import init_server
from fedshift.engine.federation import data_fingerprint, federate
from fedshift.engine.preflight import check_needs
from fedshift.experiment.identity import configure_run
from fedshift.experiment.scenario import KINDS, NESTED, scenario_from, split_settings
from fedshift.testing import tiny_scenario

DATA_OPTIONS = {field.name for field in fields(Variant)} | set(TableSchema.model_fields)
ROOT = Path(__file__).parent.parent
TEXTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(p for p in sorted((ROOT / "docs").rglob("*.md")) if p.parent.name != "tutorials"),
]  # the tutorials are run from beginning to end, by tests/tutorials
ELSEWHERE = {  # words of code that are no command of ours
    "--ray": "benchmarks/flower.py",
    "--stream": "examples/flower_app/README.md",
}
PARSED_IN = {"scripts/chaos.py": "tests/chaos/chaos_campaign.py"}  # its options
STANDS_FOR = {  # placeholders of the texts, and what is typed in their place
    "path/": "path/to/images",
    "runs/NAME": "runs/fedavg",
    "runs/leaks": "runs/fedavg",
    "runs/a": "runs/fedavg",
    "runs/b": "runs/fedavg",
    "RUN": "runs/fedavg",
    "METHOD": "fedavg",
    "SCENARIO": "digits",
    "COMMAND": "run",
    "NAME": "digits",
    "DIR": "runs/fedavg",
    "PART": "mixup",
    "RESOURCE": "client_val",
    "COLUMN": "num",
    "SECONDS": "60",
    "CELL": "-9",
    "SHARE": "0.1",
    "FILE": "schema.toml",
    "/srv/images": "path/to/images",
    "/srv/unlabelled": "path/to/images",
}


@dataclass(frozen=True)
class Mention:
    """One thing to type, and where a text says it."""

    where: str  # file:line
    text: str
    page: str


def in_blocks(path: Path) -> Iterator[Mention]:
    """Each command of the bash blocks; lines that end in a backslash are joined."""
    text = path.read_text()
    for block in re.finditer(r"```bash[^\n]*\n(.*?)```", text, flags=re.DOTALL):
        line = text[: block.start(1)].count("\n") + 1
        lines = iter(block[1].splitlines())
        for count, typed in enumerate(lines):
            whole = typed
            while whole.endswith("\\"):
                whole = whole[:-1] + next(lines)
            for command in " ".join(shlex.split(whole, comments=True, posix=False)).split("&&"):
                if command.strip():
                    yield Mention(f"{path.relative_to(ROOT)}:{line + count}", command, path.name)


def in_prose(path: Path) -> Iterator[Mention]:
    """Each piece of code in running text, blocks left out."""
    text = path.read_text()
    prose = re.sub(r"```.*?```", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)
    for found in re.finditer(r"`([^`]+)`", prose):
        line = prose[: found.start()].count("\n") + 1
        yield Mention(f"{path.relative_to(ROOT)}:{line}", " ".join(found[1].split()), path.name)


def in_comments(path: Path) -> Iterator[Mention]:
    """Options that the comments of the bash blocks name."""
    text = path.read_text()
    for block in re.finditer(r"```bash[^\n]*\n(.*?)```", text, flags=re.DOTALL):
        line = text[: block.start(1)].count("\n") + 1
        for count, typed in enumerate(block[1].splitlines()):
            for option in re.findall(r"--[a-z][a-z-]*", typed.partition(" #")[2]):
                yield Mention(f"{path.relative_to(ROOT)}:{line + count}", option, path.name)


BLOCKS = [m for path in TEXTS for m in in_blocks(path)]
PROSE = [m for path in TEXTS for m in in_prose(path)]
COMMANDS = [
    *(m for m in BLOCKS if re.match(r"export |(\w+=\S+ )*fedshift ", m.text.strip())),
    *(m for m in PROSE if m.text.startswith("fedshift ")),
]
OPTIONS = [m for m in PROSE if m.text.startswith("--")]
OPTIONS += [m for path in TEXTS for m in in_comments(path)]
VALUES = [m for m in PROSE if re.match(r"(scenario|backbone|data)\.[a-z]", m.text)]


def words_of(mention: Mention) -> tuple[dict[str, str], list[str]]:
    """Environment and arguments of a command as they are typed, placeholders replaced."""
    words = [STANDS_FOR.get(w, w) for w in shlex.split(mention.text, comments=True)]
    settings = {}
    while "=" in words[0]:
        key, _, value = words.pop(0).partition("=")
        settings[key] = value
    if words[1:2] == ["predict"]:  # what a text calls a run is one on tables there
        words[2:4] = ["runs/heart", "rows.csv"]
    if words[1:2] == ["finetune"]:  # which needs labels that the run knows
        words[2:5] = ["runs/heart", "--site", "rows.csv"]
    return settings, [w for w in words[1:] if w != "..."]


def leaves() -> dict[str, click.Command]:
    """Every command that does something, by the words that call it."""
    found: dict[str, click.Command] = {}

    def walk(command: click.Command, name: str) -> None:
        if isinstance(command, click.Group):
            for word, inner in command.commands.items():
                walk(inner, f"{name} {word}".strip())
        else:
            found[name] = command

    walk(typer.main.get_command(app), "")
    return found


LEAVES = leaves()
NAMES = {" ".join(name.split()[:n]) for name in LEAVES for n in (1, 2)} - {"demo", "list"}


def options_of(command: click.Command) -> set[str]:
    """The long options of a command that are shown in its help."""
    return {
        name
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden
        for name in option.opts
        if name.startswith("--")
    }


# the folder of somebody who follows the texts


def pictures(folder: Path, domains: tuple[str, ...], classes: tuple[str, ...], each: int) -> None:
    rng = np.random.default_rng(0)
    for domain in domains:
        for kind in classes:
            (folder / domain / kind).mkdir(parents=True, exist_ok=True)
            for i in range(each):
                image = Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8))
                image.save(folder / domain / kind / f"{i}.png")


def table(path: Path, rows: int = 30) -> None:
    rng = np.random.default_rng(len(str(path)))
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{rng.normal():.3f},{'?' if i % 7 == 0 else i % 5},{i % 2}" for i in range(rows)]
    path.write_text("age,pain,num\n" + "\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Own images and tables, two finished runs, a run file, a method of one's own."""
    here = tmp_path_factory.mktemp("typed")
    pictures(here / "path/to/images", ("va", "nh"), ("cat", "dog"), 10)
    pacs = ("photo", "art_painting", "cartoon", "sketch")
    classes = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    pictures(here / "path/to/PACS", pacs, classes, 2)
    for folder in ("path/to/csv", "hospitals"):
        table(here / folder / "va.csv")
        table(here / folder / "nh.csv")
    listed = [f"{d}/{c}/{i}.png" for d in ("va", "nh") for c in ("cat", "dog") for i in range(10)]
    (here / "photos").symlink_to("path/to/images")
    (here / "list.csv").write_text(
        "path,label,diagnosis,site\n"
        + "".join(f"{p},{p.split('/')[1]},{p.split('/')[1]},{p.split('/')[0]}\n" for p in listed)
    )
    (here / "va").symlink_to("path/to/images/va")
    (here / "nh").symlink_to("path/to/images/nh")
    runs = tiny_scenario(rounds=1)
    for name in ("fedavg", "fedbn", "local"):
        api.run("fedavg" if name == "local" else name, runs, out=here / "runs" / name, quiet=True)
    for name in ("fedavg", "fedbn"):
        api.run(name, runs, out=here / "runs/first" / name, quiet=True)
    file = 'method = "fedavg"\n[scenario]\nname = "digits"\nrounds = 2\n'
    (here / "experiment.toml").write_text(file)
    claim = 'name = "mine/bn"\npaper = "mine"\nsays = "better"\nprotocol = "global"\n'
    claim += 'method = "fedbn"\ncontrol = "fedavg"\nscenario = "digits"\n'
    (here / "mine.toml").write_text(f"[[claim]]\n{claim}")
    recipe = (ROOT / "docs" / "reproduction.md").read_text()
    (here / "my.toml").write_text(re.findall(r"```toml\n(.*?)```", recipe, re.DOTALL)[0])
    guide = (ROOT / "docs" / "extending.md").read_text()
    (here / "head_decay.py").write_text(re.findall(r"```python[^\n]*\n(.*?)```", guide, re.S)[0])
    (here / "examples").symlink_to(ROOT / "examples")
    (here / "sources").mkdir()
    (here / "sources/pacs").symlink_to(here / "path/to/PACS")
    (here / "path/to/sources").symlink_to(here / "sources")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSHIFT_HOME", str(here / "other"))
        add_data("heart", here / "hospitals", table={"label": "num"})
        api.run("fedavg", "heart", rounds=1, out=here / "runs/heart", quiet=True)
    made = init_server(here / "elsewhere", ServerSettings(host="fl.example.org"), 1)
    shutil.copy(made.ca, here / "ca.crt")
    shutil.copy(here / "hospitals/va.csv", here / "rows.csv")
    (here / "preparation.json").write_text("{}")
    (here / "images").symlink_to("path/to/images/va")
    return here


def _same_rounds(methods, scenario):
    return dict.fromkeys(methods, scenario.rounds)


KEPT: dict[object, object] = {}  # embedded data do not change between two commands


def _once(function, missing, scenario: Scenario, *more: int):
    """What a function of a scenario gives; ``missing`` for data that have to be downloaded first.

    Hundreds of commands name the embedded digits, so what they give is kept.
    """
    key = (function, scenario.model_dump_json(), *more)
    if key in KEPT:
        return KEPT[key]
    try:
        found = function(scenario, *more)
    except DataError as error:
        if "is not prepared" not in str(error):
            raise
        return missing()
    if scenario.data == "digits":
        KEPT[key] = found
    return found


def _fingerprint(scenario: Scenario) -> str:
    return _once(data_fingerprint, str, scenario)


def _federated(scenario: Scenario, seed: int) -> Federation:
    sites = dict.fromkeys(scenario.domains)
    return _once(federate, lambda: Federation(sites, {}, None, (), ()), scenario, seed)


def _analysed(kind: str, results: list, **given: object) -> Finding:
    """What an analysis says once its kind and its options are known."""
    assert results
    assert given.keys() <= options_of_kind(kind).keys(), f"{kind} has no such option: {given}"
    return Finding([{"method": "fedavg"}], Figure(), "So it is.")


class Typed:
    """Types commands in the folder; training stops where it would begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
        self.patch, self.result = monkeypatch, api.load(place / "runs/fedavg")
        self.trained: list[str] = []  # what would have been trained
        for folder in (
            "fl",
            "site",
            "clinic",
            "ward",
            "models",
        ):  # each text sets up its own machines
            shutil.rmtree(place / folder, ignore_errors=True)
        monkeypatch.chdir(place)
        monkeypatch.setenv("FEDSHIFT_HOME", str(place / "home"))
        monkeypatch.setenv("FEDSHIFT_PLUGINS", "head_decay.py")
        monkeypatch.setenv("FEDSHIFT_SOURCES", "sources")
        monkeypatch.setattr("fedshift.guide.doctor._cost", lambda _: (None, ""))  # a warm-up
        monkeypatch.setattr("fedshift.experiment.identity.data_fingerprint", _fingerprint)
        monkeypatch.setattr("fedshift.experiment.compare.federate", _federated)
        monkeypatch.setattr("fedshift.experiment.run.execute", self._execute)
        monkeypatch.setattr("fedshift.experiment.compare._attempt", self._attempt)
        monkeypatch.setattr("fedshift.experiment.compare.cores", lambda: 1)
        monkeypatch.setattr("fedshift.experiment.sweep.cores", lambda: 1)
        monkeypatch.setattr("fedshift.claims.run.cores", lambda: 1)
        monkeypatch.setattr("fedshift.claims.run.matched_rounds", _same_rounds)
        monkeypatch.setattr("fedshift.experiment.compare.matched_rounds", _same_rounds)
        monkeypatch.setattr("fedshift.experiment.compare.reference_rows", lambda *_: [])
        monkeypatch.setattr("fedshift.experiment.compare.check_scores", lambda *_: None)
        monkeypatch.setattr("fedshift.experiment.estimate.estimate", self._estimate)
        monkeypatch.setattr("fedshift.experiment.compare.estimate", self._estimate)
        monkeypatch.setattr("fedshift.cli.commands.announce", lambda *_, **__: None)
        monkeypatch.setattr("fedshift.testing.check_contract", lambda m: [build_method(m)] * 0)
        monkeypatch.setattr("fedshift.report.html.write", lambda *_: "report.html")
        monkeypatch.setattr("fedshift.analyse.registry.analyse", _analysed)
        monkeypatch.setattr("fedshift.guide.advise.Advising.advice", lambda a, _: self._advise(a))

    def _execute(self, config, method, path, options=None):
        sites = len(_federated(config.scenario, config.seed).sites)
        check_needs(method, config.scenario, sites)
        self.trained.append(config.name)
        return self.result

    def _advise(self, asked):
        """FedAvg, once the question fits the scenario."""
        lane, rounds = asked.contest.search[0], asked.given.rounds
        self._execute(*configure_run("fedavg", lane.scenario), None)
        schedule = asked.whole(rounds)[1]
        told = asked.contest.question.name, asked.given.name, "fedavg", "level", ("Take FedAvg.",)
        advice = api.Advice(*told, (), (), ("weights",), schedule, asked.given, "")
        advice.write(asked.contest.out)
        return advice

    def _attempt(self, job, listener, workers=1):
        return self._execute(job.config, job.method, job.path)

    def _estimate(self, config, method):
        self._execute(config, method, None)

    def __call__(self, mention: Mention) -> str:
        """Type a command; returns what is wrong, or nothing."""
        if mention.text.startswith("export "):
            self.patch.setenv(*mention.text.removeprefix("export ").split("="))
            return ""
        settings, words = words_of(mention)
        for key, value in settings.items():
            self.patch.setenv(key, value)
        try:
            if words == ["--install-completion"]:  # it would change the shell of whoever tests
                return "" if words[0] in options_of(typer.main.get_command(app)) else "unknown"
            if " ".join(words) in NAMES:  # a command is named, without its arguments
                words = [*words, "--help"]
            return self._read(words) if self._remote(words) else self._typed(words)
        finally:
            for key in settings:
                self.patch.setenv(key, "sources")

    @staticmethod
    def _remote(words: list[str]) -> bool:
        """Needs another machine, the hub, a shell, a port, or a device that may not be here."""
        local = ("server", "init"), ("site", "init"), ("server", "renew")
        away = words[0] in ("server", "site") and tuple(words[:2]) not in local
        elsewhere = {"hub", "cuda", "mlflow", "--executor"} & {*words}
        return away or words[0] == "serve" or bool(elsewhere)

    def _typed(self, words: list[str]) -> str:
        told = {"--help", "--resume", "--method"} & {*words}
        if words[0] in ("run", "compare") and not told and not words[1].endswith(".toml"):
            words = [*words, "--method", "fedavg"]
        if words[0] == "demo":
            words = [*words, "--rounds", "1", "--workers", "1"]
        with pytest.raises(SystemExit) as stop:
            main(words)
        return f"exit code {stop.value.code}" if stop.value.code else ""

    def _read(self, words: list[str]) -> str:
        """Only read the options, and build what they configure."""
        try:
            command: click.Command = typer.main.get_command(app)
            context = command.make_context("fedshift", list(words))
            while isinstance(command, click.Group) and context._protected_args:
                rest = [*context._protected_args, *context.args]
                _, command, rest = command.resolve_command(context, rest)
                context = command.make_context(command.name, rest, parent=context)
            if context.params.get("method"):
                own, changes = split_settings(context.params["settings"])
                given = context.params["method"]
                for one in split_methods([given] if isinstance(given, str) else list(given)):
                    build_method(one).with_(**own)
                scenario_from("digits", None, None, changes)
        except click.exceptions.Exit:
            return ""
        except (click.ClickException, FedshiftError) as error:
            return str(error)
        return ""


@pytest.fixture
def typed(monkeypatch, place) -> Typed:
    return Typed(monkeypatch, place)


@pytest.fixture(scope="module", autouse=True)
def registries():
    """Methods of the guide may be registered by one file at a time; ours go again."""
    kept = dict(METHODS._entries)
    for name, entry in kept.items():
        if entry.build.__module__.startswith("fedshift_plugin_guide"):
            METHODS.forget(name)
    yield
    new = {
        name: entry
        for name, entry in METHODS._entries.items()
        if not entry.build.__module__.startswith("fedshift_plugin_head_decay")
    }
    METHODS._entries = kept | new


PAGES = sorted({m.where.partition(":")[0] for m in COMMANDS})


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_text_can_be_typed(page, typed, capsys):
    """In the order of the text; each line says where it is and what went wrong."""
    wrong = []
    for mention in COMMANDS:
        if mention.where.partition(":")[0] == page:
            found = typed(mention)
            told = capsys.readouterr().err.strip()
            if found:
                wrong.append(f"{mention.where}: {mention.text}: {found}: {told}")
    assert not wrong, "\n".join(wrong)


def everything_typed() -> set[str]:
    """Options in the tests' source, and in the commands of the texts, which are typed above."""
    words = {w for m in COMMANDS for w in words_of(m)[1] if not m.text.startswith("export ")}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words |= {w for w in node.value.split() if w.startswith("--")}
    return words


def test_every_option_that_stands_alone_exists_and_is_typed():
    """In a table or a sentence: ``--size 64``, ``--on-loss wait --timeout SECONDS``."""
    known = {option for command in LEAVES.values() for option in options_of(command)}
    hidden = {"--grant"}  # an old name, which CONTRIBUTING.md tells of
    typed, wrong = everything_typed(), []
    for mention in OPTIONS:
        for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", mention.text):
            if option in ELSEWHERE:
                assert option in (ROOT / ELSEWHERE[option]).read_text()
            elif option not in known | hidden:
                wrong.append(f"{mention.where}: {option} is no option of any command")
            elif option not in typed:
                wrong.append(f"{mention.where}: no test types {option}")
    assert not wrong, "\n".join(wrong)


def applied(items: list[str]) -> str:
    """What is wrong with settings that a text names together; nothing if they can be set."""
    named = [item.partition("=")[0] for item in items if "=" not in item or item.endswith("...")]
    given = [item for item in items if item.partition("=")[0] not in named]
    own, changes = split_settings(given)
    for owner in ("backbone", "data"):
        known = (
            DATA_OPTIONS
            if owner == "data"
            else {o for b in BACKBONES.entries().values() for o in b.options}
        )
        odd = changes.pop(f"{owner}_options", {}).keys() - known
        if odd:
            return f"no {owner} has the option {', '.join(odd)}"
    for key in named:
        owner, _, name = key.partition(".")
        head, _, inner = name.partition(".")
        if owner == "scenario" and not (
            head in Scenario.model_fields and (not inner or head in NESTED)
        ):
            return f"scenario has no option {name}"
    stand_in = {"unseen": "outline"}  # a domain of the embedded digits
    changes = {k: stand_in.get(k, v) for k, v in changes.items()}
    if changes.get("target") == "shift,scale":
        changes |= {"target": "36.6,0.7", "objective": "regression"}
    try:
        scenario_from("digits", None, None, changes)
        build_method("fedavg").with_(**own)
    except FedshiftError as error:
        return str(error)
    return ""


def test_every_setting_that_a_text_names_can_be_set():
    """``--set KEY=VALUE`` in a sentence, and bare names such as ``scenario.confusion=false``."""
    found = [m for m in OPTIONS if m.text.startswith("--set ") and "KEY=" not in m.text] + VALUES
    wrong = [
        f"{mention.where}: {mention.text}: {said}"
        for mention in found
        if (said := applied(mention.text.replace("--set ", "").split()))
    ]
    assert len(found) >= 20
    assert not wrong, "\n".join(wrong)


def test_the_page_on_data_names_every_kind_of_split_and_partition():
    """These words are typed as ``scenario.split.kind=WORD``; each is set by a test of its own."""
    page = (ROOT / "docs/data.md").read_text()
    splits = re.search(r"Splits \(`scenario\.split\.kind`\): (.*?)\. ", page, re.DOTALL)[1]
    assert set(re.findall(r"`([a-z-]+)`", splits)) == set(KINDS["split"])
    table = re.search(r"\n\| `per-domain` \|.*?\n\n", page, re.DOTALL)[0]
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", table, re.MULTILINE)) == set(KINDS["partition"])


def test_the_command_line_page_lists_every_option_of_every_command():
    """The table by command is exact, both ways; and what is said of an option is said once."""
    page = (ROOT / "docs/cli.md").read_text()
    rows = re.findall(r"^\| `fedshift ([a-z -]+)` \| (.*) \|$", page, flags=re.MULTILINE)
    listed = {name: set(re.findall(r"--[a-z-]+", options)) for name, options in rows}
    assert listed == {name: options_of(command) for name, command in LEAVES.items()}
    meanings = page.partition("| option | meaning |")[2].partition("\n\n")[0]
    run = options_of(LEAVES["run"]) | options_of(LEAVES["compare"])
    assert {o for o in run if f"`{o}" not in meanings} == set()


def test_every_synopsis_of_the_page_is_a_command():
    """The block at its top: ``fedshift data list|prepare|add`` are three commands."""
    block = re.search(r"```text\n(.*?)```", (ROOT / "docs/cli.md").read_text(), re.DOTALL)[1]
    groups = {name.split()[0] for name in LEAVES if " " in name}
    named = set()
    for line in block.splitlines():
        first, second = line.split()[1], [*line.split(), ""][2]
        words = second.split("|") if first in groups else [""]
        named |= {f"{first} {word}".strip() for word in words}
    assert named == set(LEAVES)


def test_other_things_to_type_exist():
    """Targets of make, extras of pip, scripts and their options, settings of the Flower app."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    makefile = (ROOT / "Makefile").read_text()
    flower = tomllib.loads((ROOT / "examples/flower_app/pyproject.toml").read_text())
    wrong = []
    for mention in [*BLOCKS, *(m for m in PROSE if re.match(r"(make|pip|python) ", m.text))]:
        if mention in COMMANDS:
            continue
        _, words = words_of(Mention(mention.where, f"{mention.text} ", mention.page))
        tool = shlex.split(mention.text)[-len(words) - 1]
        if tool == "make":
            good = all(re.search(rf"^{w}:", makefile, re.MULTILINE) for w in words)
        elif tool == "pip":
            extras = re.findall(r"\[([a-z]+)\]", " ".join(words))
            good = all(e in project["optional-dependencies"] for e in extras)
        elif tool == "python":
            file = ROOT / PARSED_IN.get(words[0], words[0])
            script = file.read_text() if file.exists() else ""
            good = bool(script) and all(w in script for w in words[1:] if w.startswith("-"))
        elif tool == "flwr":
            keys = re.findall(r"(\w+)=", words[-1])
            good = set(keys) <= set(flower["tool"]["flwr"]["app"]["config"])
        else:
            here = {"pre-commit": ".pre-commit-config.yaml", "cd": words[0]}
            good = (ROOT / here.get(tool, "no such tool")).exists()
        if not good:
            wrong.append(f"{mention.where}: {mention.text}")
    assert not wrong, "\n".join(wrong)


def test_a_site_is_told_its_classes_size_and_domain(typed, place, capsys):
    """Options of ``site init`` that the page on deployment explains in a sentence."""
    words = "site init site --id berlin --server fl.example.org:8000 --ca ca.crt --data images"
    with pytest.raises(SystemExit):
        main([*words.split(), "--size", "64", "--classes", "cat,cow,dog", "--domain", "x-ray"])
    capsys.readouterr()
    told = read_site(place / "site")
    assert typed(Mention("", "fedshift server run fl --method fedavg --wait 5", "")) == ""
    assert "--hours" in typed(Mention("", "fedshift server run fl --method fedavg --hours 5", ""))
    assert (told.size, told.classes, told.domain) == (64, ("cat", "cow", "dog"), "x-ray")
