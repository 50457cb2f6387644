"""Finds recipes: those that come with the project by name, and a user's own by its file.

``fedshift reproduce`` and the documentation call it. A file that is no recipe is an error of one
line that names the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from fedshift.base.errors import ConfigError, UnknownNameError
from fedshift.base.files import from_toml
from fedshift.core.scenario import one_line
from fedshift.recipes.recipe import Recipe, RecipeRow

FOLDER = Path(__file__).parent
PAPERS = ("fdse", "f2dc", "fedka", "csac", "feddebias")


def names() -> list[str]:
    """Names of all recipes, paper by paper, tables before figures, by number; reads no file."""
    found = [f"{file.parent.name}/{file.stem}" for file in FOLDER.glob("*/*.toml")]
    return sorted(found, key=_order)


def _order(name: str) -> tuple[int, bool, int]:
    paper, _, artefact = name.partition("/")
    number = "".join(char for char in artefact if char.isdigit())
    return PAPERS.index(paper), artefact.startswith("fig"), int(number)


def find_recipes(wanted: Sequence[str]) -> list[Recipe]:
    """Recipes by name (``fdse/table1``), by paper (``fdse``), ``all``, or by a TOML file."""
    known = names()
    out: dict[str, Recipe] = {}
    for name in wanted:
        if name.endswith(".toml"):
            found = [read_recipe(Path(name))]
        else:
            own = [one for one in known if name in (one, one.partition("/")[0], "all")]
            if not own:
                raise UnknownNameError.of("recipe", name, known)
            found = [read_recipe(FOLDER / f"{one}.toml") for one in own]
        out |= {recipe.name: recipe for recipe in found}
    return list(out.values())


def read_recipe(file: Path) -> Recipe:
    """The recipe in a file."""
    try:
        return Recipe.model_validate(from_toml(file.read_text()))
    except ValidationError as error:
        raise ConfigError(f"{file}: {one_line(error)}") from None
    except (OSError, ValueError) as error:  # a syntax error is a ValueError
        raise ConfigError(
            f"{file} is no recipe ({error}); it takes name, paper, caption, protocol, and tables "
            "[[row]] and [[column]]"
        ) from None


def require_known(recipes: Sequence[Recipe], wanted: Sequence[str]) -> None:
    """Raise if a wanted row or method is in none of the recipes."""
    rows = [row for recipe in recipes for row in recipe.rows]
    known = {word for row in rows for word in (row.name, row.method) if word}
    for word in wanted:
        if word not in known:
            raise UnknownNameError.of("row or method of these recipes", word, known)


def only(recipe: Recipe, wanted: Sequence[str]) -> list[RecipeRow]:
    """The rows to make: all, or those whose name or method is wanted."""
    rows = recipe.rows
    return [row for row in rows if not wanted or {row.name, row.method} & set(wanted)]
