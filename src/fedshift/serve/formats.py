"""The formats of an exported model: how each is written, and how what was written is run.

``export`` calls :func:`write`, and the parity check runs what came out through :func:`runner`, from
the file. Nothing here decides what is exported; see ``graph``.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from fedshift.base.errors import ConfigError, FedshiftError
from fedshift.base.extras import require
from fedshift.base.files import readable_errors, write_bytes
from fedshift.base.tensor_files import read_tensors, write_tensors
from fedshift.core.net import load
from fedshift.serve.about import KEY
from fedshift.serve.graph import Graph

Format = Literal["onnx", "torch-export", "safetensors", "torchscript"]
FORMATS: tuple[Format, ...] = ("onnx", "torch-export", "safetensors", "torchscript")
OPSET = 18
EXTRA = '"fedshift[export]"'
Runner = Callable[[Tensor], Tensor]  # raw inputs (N, *shape) to outputs (N, K)


def require_format(name: str) -> Format:
    """Raise if there is no such format, or if it needs what is not installed."""
    if name not in FORMATS:
        raise ConfigError(f"format is {name!r}; it takes one of {', '.join(FORMATS)}")
    if name == "onnx":
        require_onnx()
    return name


def require_onnx() -> None:
    """Raise unless ONNX files can be written and run."""
    for module in ("onnx", "onnxscript", "onnxruntime"):
        require(module, f"ONNX files need {module}", EXTRA)


def write(graph: Graph, path: Path, name: Format, about: Mapping[str, Any]) -> None:
    """Write a graph, whose decisions are settled, in one of the formats."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with readable_errors(path):
        WRITERS[name](graph, path, about)


def _onnx(graph: Graph, path: Path, about: Mapping[str, Any]) -> None:
    traced = exported(graph)
    names = {"input_names": ["input"], "output_names": list(graph.outputs)}
    with quiet():
        program = torch.onnx.export(traced, (), dynamo=True, opset_version=OPSET, verbose=False,
                                    **names)  # type: ignore[arg-type]  # fmt: skip
    assert program is not None
    proto = program.model_proto
    entry = proto.metadata_props.add()
    told = dict(about) | {"table": graph.model.inputs and graph.model.inputs.table}
    entry.key, entry.value = KEY, json.dumps(told)  # the record serves raw rows, see `predictor`
    write_bytes(path, proto.SerializeToString())


def _torch_export(graph: Graph, path: Path, about: Mapping[str, Any]) -> None:
    buffer = io.BytesIO()
    with quiet():
        torch.export.save(exported(graph), buffer, extra_files={KEY: json.dumps(about)})
    write_bytes(path, buffer.getvalue())


def _torchscript(graph: Graph, path: Path, about: Mapping[str, Any]) -> None:
    with quiet(), torch.no_grad(), refusing():
        script = torch.jit.trace(graph, example(graph), check_trace=False)
        blob = script.save_to_buffer(_extra_files={KEY: json.dumps(about)})
    write_bytes(path, blob)


def _safetensors(graph: Graph, path: Path, about: Mapping[str, Any]) -> None:
    x = example(graph)
    with torch.no_grad():
        alone = graph.net(graph.scaled(x)).logits
        if not torch.equal(alone, graph(x)[0]):
            raise ConfigError(
                f"{graph.model.config.label} predicts with more than its net, and safetensors "
                "holds the net's entries alone; choose another format",
                "format=onnx",
            )
    write_tensors(path, dict(graph.net.state_dict()), about)


WRITERS: dict[Format, Callable[[Graph, Path, Mapping[str, Any]], None]] = {
    "onnx": _onnx,
    "torch-export": _torch_export,
    "torchscript": _torchscript,
    "safetensors": _safetensors,
}


def example(graph: Graph) -> Tensor:
    """Inputs to trace with; more than one, because tracers take a batch of one for a constant."""
    kind = torch.uint8 if graph.images else torch.float32
    return (
        torch.arange(3 * int(np.prod(graph.shape))).remainder(251).reshape(3, *graph.shape).to(kind)
    )


def exported(graph: Graph) -> ExportedProgram:
    """The traced graph, for batches of any size."""
    with quiet(), torch.no_grad(), refusing():
        return torch.export.export(
            graph, (example(graph),), dynamic_shapes=({0: Dim("batch")},), strict=False
        )


@contextmanager
def refusing() -> Iterator[None]:
    """Turn a tracer's failure, which runs over many lines, into one of ours."""
    try:
        yield
    except FedshiftError:
        raise
    except Exception as error:  # tracers raise whatever they meet
        first = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise ConfigError(
            f"this method's prediction cannot be written as a graph ({first}); export the model "
            "of another method, or predict with fedshift"
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep back what torch's exporters say of torchvision, of versions and of themselves."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def runner(path: Path, name: Format, graph: Graph) -> Runner:
    """The outputs of an exported file; ``graph`` is the net into which safetensors are loaded."""
    if name == "onnx":
        return onnx_runner(path)
    with quiet():
        if name == "torch-export":
            module: Any = torch.export.load(io.BytesIO(path.read_bytes())).module()
        elif name == "torchscript":
            module = torch.jit.load(path)
        else:
            load(graph.net, read_tensors(path)[0])
            return lambda x: graph.net(graph.scaled(x)).logits
    return lambda x: module(x)[0]


def onnx_runner(path: Path) -> Runner:
    """The outputs of an ONNX file, by onnxruntime."""
    session = onnx_session(path)
    return lambda x: torch.from_numpy(session.run(None, {"input": x.numpy()})[0])


def onnx_session(path: Path, threads: int = 0) -> Any:
    """An onnxruntime session on the processor; 0 threads: as many as there are cores."""
    require_onnx()
    import onnxruntime  # noqa: PLC0415  an extra

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common base
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{path} is no ONNX model that can be run ({reason})") from None
