"""The layout holds: who may import what, which names are public, which words are used."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedshift

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "fedshift"
FILES = sorted(SOURCE.rglob("*.py"))
AUTHORS = ("methods", "privacy", "backbones", "scenarios")  # packages that use the public names
BELOW = {"base", "data", "core"}  # where what they use has to live


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def public() -> dict[str, str]:
    """Public names and the modules they are from, as the stub says."""
    stub = ast.parse((SOURCE / "__init__.pyi").read_text())
    nodes = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in nodes for alias in node.names}


def package(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0]


def test_an_import_against_the_layers_is_found(tmp_path: Path):
    """A copy in which core imports the engine: the linter names both."""
    copy = tmp_path / "src" / "fedshift"
    for path in FILES:
        target = copy / path.relative_to(SOURCE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(path.read_text())
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    environment = f"import sys; sys.path.insert(0, {str(tmp_path / 'src')!r}); "
    command = environment + "from importlinter.cli import lint_imports_command as c; c()"

    def lint() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-c", command, "--no-cache", "--no-logo"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    assert lint().returncode == 0
    broken = copy / "core" / "loop.py"
    broken.write_text(broken.read_text() + "\nfrom fedshift.engine.visit import Worker\n")
    found = lint()
    assert found.returncode == 1
    assert "fedshift.core.loop -> fedshift.engine.visit" in found.stdout


def test_only_folders_called_flower_import_flower():
    wrong = [p for p in FILES if any(i.split(".")[0] in ("flwr", "ray") for i in imports(p))]
    assert [str(p) for p in wrong if "flower" not in p.relative_to(SOURCE).parts[:-1]] == []
    assert wrong  # the test looks at something


def test_packages_of_authors_take_from_the_public_names_what_lies_below_them():
    known = public()
    for path in FILES:
        if package(path) not in AUTHORS:
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and node.module == "fedshift":
                above = [a.name for a in node.names if known[a.name].split(".")[0] not in BELOW]
                assert above == [], f"{path.name} takes {above} from packages above it"


def test_few_modules_lie_at_the_top():
    own = [p.name for p in SOURCE.glob("*.py") if p.name not in ("__init__.py", "__main__.py")]
    assert len(own) <= 6, own


def test_type_checking_blocks_are_for_hooks_that_name_a_layer_above():
    found = [str(p.relative_to(SOURCE)) for p in FILES if "if TYPE_CHECKING:" in p.read_text()]
    names = ("aggregate", "analysis", "channel", "method", "part", "payload", "resource")
    assert found == [f"core/{name}.py" for name in names]


def test_no_two_classes_have_one_name():
    where = defaultdict(list)
    for path in FILES:
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                where[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def test_below_the_command_line_nothing_names_its_flags():
    """But systemctl's, and Flower's own in folders called flower; errors.py explains the idea.

    standalone.py is a script of its own, which is copied beside exported models.
    """
    own = ("errors.py", "standalone.py")
    found = []
    for path in FILES:
        if package(path) == "cli" or "flower" in path.parts or path.name in own:
            continue
        texts = (n.value for n in ast.walk(parsed(path)) if isinstance(n, ast.Constant))
        flags = [f for t in texts if isinstance(t, str) for f in FLAG.findall(t)]
        found += [f"{path.name}: {f}" for f in flags if f not in ("--now", "--help")]
    assert found == []


PRIVATE_WORDS = (
    "shelf",
    "convene",
    "unseal",
    "newcomer",
    "companions",
    "at_home",
    "conceals",
    "riders",
    "letters",
)


@pytest.mark.parametrize("word", PRIVATE_WORDS)
def test_private_words_have_left_the_code(word):
    allowed = {
        "newcomer": {"scenario.py"},  # old run directories
        "letters": {"credentials.py", "datasets.py", "catalogue.py"},  # of the alphabet
    }
    pattern = re.compile(rf"(?<![a-z]){word}(?![a-z])")
    found = [p.name for p in FILES if pattern.search(p.read_text())]
    assert set(found) <= allowed.get(word, set())


# the public names


def test_every_public_name_is_there_and_in_all():
    assert sorted(public()) == sorted(fedshift.__all__)
    for name in fedshift.__all__:
        assert getattr(fedshift, name) is not None
    assert set(fedshift.__all__) <= set(dir(fedshift))


def test_every_public_name_is_documented_and_has_a_docstring():
    page = (ROOT / "docs" / "api.md").read_text()
    documented = set(re.findall(r"(?:::: fedshift\.|\| `)(\w+)", page))
    assert sorted(set(fedshift.__all__) - documented - {"__version__"}) == []
    for name in fedshift.__all__:
        value = getattr(fedshift, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, name


def test_everything_the_guide_for_authors_uses_is_exported():
    text = (ROOT / "docs" / "extending.md").read_text()
    lines = re.findall(r"from fedshift import ([^\n]+)", text)
    named = {n.strip() for line in lines for n in line.split(",")}
    named |= set(re.findall(r"`fedshift\.([A-Za-z_]+)`", text))
    assert named
    assert sorted(named - set(fedshift.__all__) - {"methods", "testing"}) == []


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        fedshift.nothing_of_that_name  # noqa: B018


def test_scaffold_imports_fedshift_in_one_statement():
    found = [i for i in imports(SOURCE / "methods" / "scaffold.py") if i.startswith("fedshift")]
    assert found == ["fedshift"]


def test_the_package_and_its_help_do_not_wait_for_torch():
    code = "import sys, fedshift, fedshift.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
