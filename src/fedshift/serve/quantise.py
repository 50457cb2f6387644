"""Weights of 8 bits: a smaller ONNX file whose answers differ a little from the trained model's.

``export`` calls it and measures what it costs in accuracy. Dynamic quantisation needs no data:
weights are rounded once, and each layer's inputs are rounded by the range that they have.
"""

from __future__ import annotations

import logging
from pathlib import Path

from fedshift.serve.formats import quiet, require_onnx


def quantise_onnx(path: Path) -> Path:
    """Write ``NAME.int8.onnx`` beside an ONNX file.

    The weights are unsigned: onnxruntime has no convolution of signed 8-bit weights on processors.
    """
    require_onnx()
    import onnx  # noqa: PLC0415  an extra
    from onnxruntime.quantization import QuantType, quantize_dynamic  # noqa: PLC0415  an extra

    model = onnx.load(path)
    del model.graph.value_info[:]  # shapes of layers that the quantiser turns round
    out = path.with_suffix(f".int8{path.suffix}")
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)  # it advises a preparation that changes nothing here
    try:
        with quiet():
            quantize_dynamic(model, out, weight_type=QuantType.QUInt8)
    finally:
        root.setLevel(before)
    return out
