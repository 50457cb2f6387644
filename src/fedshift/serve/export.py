"""Write a trained model as a file that runs without fedshift, and check that it answers alike.

Users call :func:`export`, and ``fedshift export`` does. Beside the model it writes what a stranger
needs: ``prepare.py``, which turns raw files into inputs, and the model card. A file that does not
answer as the trained model did is not left behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedshift.base.errors import ConfigError, RunError
from fedshift.core.method import Method
from fedshift.experiment.models import load_model
from fedshift.report.results import RunResult
from fedshift.runs.record import read_summary
from fedshift.serve.about import FILE, about_of, cannot_prepare, require_free, write_prepare
from fedshift.serve.calibrate import Temperature, require_kind, temperature_of
from fedshift.serve.card import card_of
from fedshift.serve.card_text import write_cards
from fedshift.serve.formats import OPSET, example, onnx_runner, require_format, runner, write
from fedshift.serve.graph import Graph
from fedshift.serve.parity import Asked, Parity, compare, made_inputs, tested_inputs
from fedshift.serve.quantise import quantise_onnx

NO_CARD = (
    "no model card: the run's results are not in this folder; those of a deployed site are at the "
    "server, and an unfinished run has none"
)


@dataclass(frozen=True)
class Exported:
    """What an export wrote, and how it compares with the trained model."""

    path: Path
    format: str
    parity: Parity
    files: tuple[Path, ...]  # all that was written, the model first
    notes: tuple[str, ...] = ()
    quantised: Parity | None = None  # of the int8 file, which may differ
    temperature: Temperature | None = None  # by which its probabilities are calibrated

    @property
    def opset(self) -> int | None:
        """Of an ONNX file."""
        return OPSET if self.format == "onnx" else None

    def lines(self) -> list[str]:
        """What the command line says."""
        opset = f", opset {self.opset}" if self.opset else ""
        out = [f"{self.path}: {self.format}{opset}, {size_of(self.path)}", f"parity: {self.parity}"]
        if self.quantised is not None:
            out.append(f"{self.files[1]}: int8, {size_of(self.files[1])}; {change(self.quantised)}")
        if self.temperature is not None:
            out.append(f"calibrated: {self.temperature}")
        beside = [path.name for path in self.files[1 + (self.quantised is not None) :]]
        return [*out, *self.notes, *([f"beside it: {', '.join(beside)}"] if beside else [])]


def size_of(path: Path) -> str:
    """Bytes of a file, as a person reads them."""
    size = path.stat().st_size
    return f"{size / 1e6:.2f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def change(found: Parity) -> str:
    """What quantisation did: to the measure on test samples, else to the classes of made inputs."""
    if found.before is None or found.after is None:
        return f"no test samples; {100 * found.same:.2f} % of made inputs keep their class"
    step = f"{found.before:.2f} -> {found.after:.2f} % ({found.after - found.before:+.2f})"
    return f"{found.tests} test samples: {step}, {100 * found.same:.2f} % same classes"


def export(  # noqa: PLR0913  as many options as the command has
    run: RunResult | Path | str,
    out: Path | str,
    format: str = "onnx",  # noqa: A002  the word of the command line
    *,
    site: str | None = None,
    quantise: str | None = None,
    calibrate: str | None = None,
    licence: str = "",
    method: Method | None = None,
) -> Exported:
    """Write the model of a run as a file, with ``prepare.py`` and a model card beside it.

    Args:
        run: a run directory, or a result that has one.
        out: the file to write.
        format: ``onnx``, ``torch-export``, ``torchscript`` (graphs: raw inputs in, outputs and
            probabilities out, any batch size) or ``safetensors`` (the net's entries alone).
        site: the site whose own model is wanted; None takes the one model for all.
        quantise: ``int8`` writes a second ONNX file with weights of 8 bits.
        calibrate: ``temperature`` divides logits by a number before they become probabilities,
            fitted on the validation samples; classes, logits and energies stay the same.
        licence: under which the model may be used, for the card.
        method: the method, if the run was given a Method object.
    """
    path, kind = Path(out), require_format(format)
    folder = run.path if isinstance(run, RunResult) else Path(run)
    if quantise not in (None, "int8") or (quantise and kind != "onnx"):
        raise ConfigError(f"quantise={quantise!r} is not int8 of an ONNX file", "format=onnx")
    require_kind(calibrate)
    graph = Graph(load_model(run, site, method=method))
    assert folder is not None  # or there would be no model
    if kind != "safetensors":  # which has no prepare.py
        require_free(path.parent, path.name)
    graph.settle(example(graph))
    about = about_of(graph.model, path.name, kind)
    tested = tested_inputs(graph, folder)
    asked = [*made_inputs(graph), *tested]
    warmth = temperature_of(graph, tested) if calibrate else None
    if warmth is not None:
        graph.temperature = about["temperature"] = warmth.value
    write(graph, path, kind, about)
    parity = compare(asked, runner(path, kind, graph), graph)
    if not parity.holds:
        path.unlink()
        raise RunError(f"the {kind} model does not answer as the trained one: {parity}; not kept")
    files, less = [path], None
    if quantise:
        files.append(quantise_onnx(path))
        less = compare(chosen(asked), onnx_runner(files[1]), graph)
    notes = _prepare(files, about) if kind != "safetensors" else ()
    told = {"site": site, "licence": licence, "temperature": warmth}
    notes += _cards(files, folder, told)
    return Exported(path, kind, parity, tuple(files), notes, less, warmth)


def _prepare(files: list[Path], about: Mapping[str, Any]) -> tuple[str, ...]:
    """Write ``prepare.py``, and add it to the files; or a note why there is none."""
    if reason := cannot_prepare(about):
        return (f"no {FILE}: {reason}; give the model prepared rows",)
    files.append(write_prepare(files[0].parent, about))
    return ()


def _cards(files: list[Path], run: Path, told: Mapping[str, Any]) -> tuple[str, ...]:
    """Write the model's cards, and add them to the files; or a note why there are none."""
    if read_summary(run) is None:
        return (NO_CARD,)
    files += write_cards(card_of(run, files=tuple(files), **told), files[0])
    return ()


def chosen(asked: Sequence[Asked]) -> list[Asked]:
    """Test samples where there are any: made inputs say nothing of accuracy."""
    return [one for one in asked if one.y is not None] or list(asked)
