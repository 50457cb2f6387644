"""Grad-CAM: where a net looks (Selvaraju et al., ICCV 2017), with F2DC's f+, f- and f* (Fig. 2).

The maps are those of the last stage that has any, modules that parts insert after it included. For
a net with F2DC's module the same is shown for the parts that it splits its map into: f+ (robust),
f- (related to the domain) and f* (corrected), each in place of their sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedshift.analyse.alike import caption, require_classes, series_of
from fedshift.analyse.finding import Finding, Rows
from fedshift.analyse.outputs import (
    Array,
    chosen_domains,
    federation_of,
    model_for,
    require_on_disk,
    test_samples,
)
from fedshift.analyse.pictures import draw
from fedshift.analyse.registry import register_kind
from fedshift.base.errors import ConfigError, UnknownNameError
from fedshift.base.extras import require
from fedshift.core.net import Net
from fedshift.data.samples import Samples
from fedshift.methods.f2dc.layers import DecouplingNeck
from fedshift.report.results import RunResult

PARTS = {"final": "", "robust": "f+", "related": "f-", "rectified": "f*"}


@register_kind("gradcam", paper="F2DC Fig. 2", group="features")
def gradcam(
    results: Sequence[RunResult],
    *,
    site: str | None = None,
    domains: str = "",
    label: str = "",
    sample: int = 0,
    target: str = "label",
    mixed: bool = False,
) -> Finding:
    """Heat maps of one test sample per domain and method: what speaks for its class.

    ``focus`` is the share of the map's positions that carry the heat (exp of its entropy): near 0
    for one spot, 1 if it is even.

    Options: site: whose own model, as for spectrum; domains: names joined by commas; label: the
    class of the samples, by default the first; sample: which one of them; target: label, or
    predicted: the class that is explained.
    """
    require("captum", "Grad-CAM needs captum", '"fedshift[analyse]"')
    if target not in ("label", "predicted"):
        raise ConfigError(f"target is {target!r}; a map explains the label or the predicted class")
    found = series_of(results, mixed=mixed)
    require_classes(found, "Grad-CAM")
    table: Rows = []
    grid: dict[str, list[Any]] = {}
    notes: list[str] = []
    columns: list[str] = []
    for one in found:
        run = one.runs[0]
        require_on_disk(run)
        federation = federation_of(run)
        held = chosen_domains(test_samples(federation, run), domains)
        for name, samples in held.items():
            place = position(samples, federation.classes, label, sample)
            model = model_for(run, federation, name, site)
            if model is None:
                continue
            columns += [name] if name not in columns else []
            notes += [model[1]] if model[1] else []
            for part, seen in explained(model[0].net, samples, place, target).items():
                row = f"{one.label} {PARTS[part]}".strip()
                told = {"method": one.label, "map": PARTS[part] or "whole", "domain": name}
                table.append(told | seen.told(federation.classes))
                grid.setdefault(row, []).append((name, seen))
    right = {
        one.label: [r["right"] for r in table if (r["method"], r["map"]) == (one.label, "whole")]
        for one in found
    }
    best = max(right, key=lambda name: sum(right[name]) / max(1, len(right[name])))
    sentence = f"{best} predicts {sum(right[best])} of its {len(right[best])} samples right."
    figure = draw(lambda d: _figure(d, grid, columns, caption(found)))
    return Finding(table, figure, sentence, tuple(dict.fromkeys(notes)))


class Explained:
    """A heat map (H, W) over an image, and what the net says of it."""

    def __init__(self, image: Array, heat: Array, share: Array, label: int) -> None:
        self.image, self.heat, self.share, self.label = image, heat, share, label

    def told(self, classes: Sequence[str]) -> dict[str, Any]:
        """The row of the table."""
        predicted = int(self.share.argmax())
        return {
            "class": classes[self.label],
            "predicted": classes[predicted],
            "right": predicted == self.label,
            "probability": float(self.share[self.label]),
            "focus": focus(self.heat),
        }


def focus(heat: Array) -> float:
    """The share of positions that carry a non-negative map: exp of its entropy over their number.

    >>> focus(np.array([[1.0, 0.0], [0.0, 0.0]])), focus(np.ones((2, 2)))
    (0.25, 1.0)
    """
    shares = heat[heat > 0] / max(heat.sum(), 1e-300)
    return float(np.exp(-(shares * np.log(shares)).sum()) / heat.size) if shares.size else 0.0


def position(samples: Samples, classes: Sequence[str], label: str, sample: int) -> int:
    """The place of the sample that is shown: the ``sample``-th of a class."""
    if samples.x.dim() != 4:
        raise ConfigError("Grad-CAM is of images, and these inputs are vectors; give other runs")
    if label and label not in classes:
        raise UnknownNameError.of("class of these runs", label, classes)
    wanted = list(classes).index(label) if label else 0
    places = (samples.labels == wanted).nonzero().flatten()
    if not 0 <= sample < len(places):
        raise ConfigError(
            f"sample is {sample}, and {len(places)} test samples are of class {classes[wanted]!r}"
        )
    return int(places[sample])


def explained(net: Net, samples: Samples, place: int, target: str) -> dict[str, Explained]:
    """The heat map of one sample, by part of the map: the whole, and F2DC's three."""
    x, y = samples.take(torch.tensor([place]))
    stored = samples.x[samples.rows[place]].numpy() / 255.0  # (H, W, C)
    image = stored if stored.shape[2] == 3 else stored[..., 0]
    necks = [m for m in net.modules() if isinstance(m, DecouplingNeck)]
    out = {}
    net.eval()
    for part in PARTS if necks else ("final",):
        with showing(necks, part):
            with torch.no_grad():
                share = net(x).logits.softmax(1)[0]
            wanted = int(y) if target == "label" else int(share.argmax())
            heat = heat_map(net, x, wanted)
        heat = nn.functional.interpolate(
            heat, tuple(image.shape[:2]), mode="bilinear", align_corners=False
        )
        whole = heat[0, 0].double().numpy()
        whole = whole / whole.max() if whole.max() > 0 else whole
        out[part] = Explained(image, whole, share.double().numpy(), int(y))
    return out


@contextmanager
def showing(necks: Sequence[DecouplingNeck], part: str) -> Iterator[None]:
    """Let F2DC's modules pass on one part of their map, while the block runs."""
    before = [neck.scored for neck in necks]
    for neck in necks:
        neck.scored = part
    try:
        yield
    finally:
        for neck, was in zip(necks, before, strict=True):
            neck.scored = was


class Rest(nn.Module):
    """What follows a stage of a net, as a module from its map (B, C, H, W) to logits."""

    def __init__(self, net: Net, stage: str) -> None:
        super().__init__()
        self.point = nn.Identity()  # where Grad-CAM listens
        self.net = net
        names = list(net.stages)
        self.later = names[names.index(stage) + 1 :]

    def forward(self, maps: Tensor) -> Tensor:
        """Logits (B, K)."""
        x = self.point(maps)
        for stage in self.later:
            for path in self.net.stages[stage]:
                x = attrgetter(path)(self.net)(x)
            for name in self.net.necks[stage]:
                if name not in self.net.skipped:
                    x, _ = self.net.extra[name](x)
        logits: Tensor = self.net.head_module(x.flatten(1))
        return logits


def heat_map(net: Net, x: Tensor, wanted: int) -> Tensor:
    """Grad-CAM (B, 1, H, W) of class ``wanted``: relu(sum_c a_c f_c), a_c the mean of dy/df_c.

    f is the map of the last stage that has one.
    """
    from captum.attr import LayerGradCam  # noqa: PLC0415  an extra

    with torch.no_grad():
        taps = net(x).taps
    spatial = [name for name, tap in taps.items() if tap.dim() == 4 and tap.shape[2] > 1]
    if not spatial:
        raise ConfigError("no stage of this net has maps; Grad-CAM needs a convolutional backbone")
    rest = Rest(net, spatial[-1])
    maps = taps[spatial[-1]].detach().requires_grad_(True)
    heat: Tensor = LayerGradCam(rest, rest.point).attribute(
        maps, target=wanted, relu_attributions=True
    )
    return heat.detach()


def _figure(d: Any, grid: dict[str, list[Any]], columns: Sequence[str], note: str) -> Any:
    first = {name: seen for own in grid.values() for name, seen in own}
    rows = {"input": [d.Picture(first[name].image, None) for name in columns]}
    for row, own in grid.items():
        by_name = dict(own)
        rows[row] = [
            d.Picture(seen.image, seen.heat, f"p = {seen.share[seen.label]:.2f}") if seen else None
            for seen in map(by_name.get, columns)
        ]
    return d.images(rows, columns, d.Chart("Grad-CAM", f"{note}; p: probability of the class"))
