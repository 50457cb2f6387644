"""Which scaling of pixels the weights of efficientnet-lite0 expect, on Office-Caltech10.

For each scaling: a linear probe of its features (300 training images of a domain, 200 test images),
and the weights' own classifier among the ImageNet classes that belong to a class of the data, which
nothing has been fitted to. It prints the table of docs/data.md in a few minutes:

FEDSHIFT_SOURCES=path/to/sources python benchmarks/pretrained_pixels.py
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from fedshift.backbones.efficientnet import efficientnet_lite0
from fedshift.data.library.loaded import load
from fedshift.data.samples import as_input

SIZE, TRAIN, TEST = 112, 300, 200
IMAGENET = {  # numbers of ImageNet's classes
    "backpack": [414],
    "bike": [444, 671],
    "calculator": [590, 605],
    "keyboard": [508, 810, 878],
    "laptop": [620, 681],
    "monitor": [664, 782, 851],
    "mouse": [673],
    "mug": [504],
    "projector": [745],
}


def draw(domain, split, count):
    rows = domain.rows(split).numpy()
    rows = np.random.default_rng(0).permutation(rows)[:count]
    return domain.x[rows], domain.y[rows].numpy()


@torch.inference_mode()
def outputs(net, images, pixels):
    out = [net(as_input(some, pixels)) for some in images.split(50)]
    return [torch.cat([getattr(o, key) for o in out]).numpy() for key in ("features", "logits")]


def zero_shot(logits, labels, classes):
    known = [i for i, name in enumerate(classes) if name in IMAGENET]
    scores = np.stack([logits[:, IMAGENET[classes[i]]].max(1) for i in known], 1)
    asked = np.isin(labels, known)
    return 100 * (np.array(known)[scores.argmax(1)] == labels)[asked].mean()


def main() -> None:
    torch.set_num_threads(1)
    net = efficientnet_lite0((3, SIZE, SIZE), 1000, pretrained="imagenet").eval()
    domains = load("office-caltech10", f'{{"size": {SIZE}}}')
    print("| `scenario.pixels` | probe amazon | probe caltech | own amazon | own caltech |")
    print("|---|---|---|---|---|")
    for pixels in ("inception", "unit", "centred", "imagenet"):
        probes, own = [], []
        for name in ("amazon", "caltech"):
            (x, y), (test, labels) = (draw(domains[name], *s) for s in ((0, TRAIN), (2, TEST)))
            features, _ = outputs(net, x, pixels)
            unseen, logits = outputs(net, test, pixels)
            probe = LogisticRegression(max_iter=300, C=0.1).fit(features, y)
            probes.append(100 * probe.score(unseen, labels))
            own.append(zero_shot(logits, labels, domains[name].classes))
        print(f"| `{pixels}` | " + " | ".join(f"{v:.1f}" for v in probes + own) + " |", flush=True)


if __name__ == "__main__":
    main()
