"""Unlabelled inputs that the server holds, for methods that align the sites with a target."""

from __future__ import annotations

from pathlib import Path

import torch

from fedshift.data.federation import Splits, federate
from fedshift.data.images import SUFFIXES, Item, decode_all
from fedshift.data.samples import Pixels, Samples
from fedshift.errors import ConfigError, DataError
from fedshift.method import Method
from fedshift.runs.config import RunConfig
from fedshift.scenario import Scenario

FROM_SCENARIO = "scenario"  # in place of a folder: the unseen domain of the run's scenario
NAME = "target"


def with_target(scenario: Scenario, target: str | None) -> Scenario:
    """The scenario with a target at the server, if there is one, or without."""
    held = {"server_unlabelled", "client_target_unlabelled"}
    grants = tuple(g for g in scenario.grants if g not in held)
    if target is None:
        return scenario.change(unseen=None, unseen_split=None, grants=grants)
    grants = (*grants, "server_unlabelled")
    if target != FROM_SCENARIO:
        images_in(Path(target))
        return scenario.change(unseen=NAME, unseen_split=None, grants=grants)
    if scenario.unseen is None:
        raise ConfigError(
            f"scenario {scenario.name!r} has no unseen domain to be the target; give --target a "
            "folder of images"
        )
    return scenario.change(grants=grants)


def require_target(method: Method, target: str | None) -> None:
    """Say who needs a target that is not there, before anybody is waited for."""
    for item in method.declared:
        if "client_target_unlabelled" in item.needs:
            raise ConfigError(
                f"{item.name} needs the target's inputs at every site; in a deployment they lie at "
                "the server"
            )
        if "server_unlabelled" in item.needs and target is None:
            raise ConfigError(
                f"{item.name} needs unlabelled inputs of a target at the server; give --target a "
                "folder of images"
            )


def open_target(target: str, config: RunConfig, shape: tuple[int, ...]) -> Splits:
    """The target's inputs in the shape of the sites'; labels, if there are any, are left behind."""
    if target == FROM_SCENARIO:
        unseen = federate(config.scenario, config.seed).unseen
        assert unseen is not None
        return unseen
    inputs = read_folder(Path(target), shape, config.scenario.pixels)
    nothing = Samples(inputs.x, inputs.y, torch.empty(0, dtype=torch.long), inputs.pixels)
    return Splits(inputs, nothing, nothing)


def read_folder(folder: Path, shape: tuple[int, ...], pixels: Pixels) -> Samples:
    """Every image in a folder or below it, as large as the sites' ones."""
    if len(shape) != 3 or shape[1] != shape[2]:
        raise DataError(
            f"the sites' inputs have shape {shape}, and the target's images cannot be made so; "
            "give all sites one --size"
        )
    items = [Item(str(path), "", -1, path) for path in images_in(folder)]
    found, _, problems = decode_all(NAME, items, shape[1])
    if problems:
        raise DataError(problems[0])
    x = torch.from_numpy(found)
    return Samples(x, torch.full((len(x),), -1), torch.arange(len(x)), pixels)


def images_in(folder: Path) -> list[Path]:
    """The images in a folder or below it, sorted."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give --target a folder of images")
    found = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES)
    if not found:
        raise DataError(f"{folder} has no images; --target takes *.jpg or *.png in it or below")
    return found
