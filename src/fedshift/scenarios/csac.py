"""CSAC (TKDE 2023): one source domain per client, leave one domain out.

ResNet-18 (ImageNet weights, bottleneck of 256), 224 px, resized crop, flip, jitter, grey, SGD 0.01
with momentum 0.5, batch 64, 10 "epochs" of 20 iterations per round (5 on Rotated MNIST), 40 rounds;
the whole target domain is scored. The paper does not state its model selection (its code takes
the best round on the target); here validation data select. Give the weights with
``backbone.pretrained=FILE``; without them the net starts from scratch.

``csac/pacs-imagenet`` starts from ImageNet as the paper does, with a net whose weights need no hub:
EfficientNet-Lite0 in place of ResNet-18 (the extra ``pretrained``), fine-tuned as a whole, since
CSAC aligns maps of its layers.
"""

from __future__ import annotations

from typing import Any

from fedshift.data.dealing.splits import AllTest, PerClass
from fedshift.scenarios.papers import leave_out, of_paper

PACS = ("art_painting", "cartoon", "photo", "sketch")
VLCS = ("caltech101", "labelme", "sun09", "voc2007")
HOME = ("amazon", "webcam", "caltech", "art", "clipart", "product", "real_world")
ANGLES = tuple(f"deg{angle}" for angle in range(0, 76, 15))
COMMON: dict[str, Any] = {
    "split": PerClass(),
    "unseen_split": AllTest(),
    "rounds": 40,
    "batch_size": 64,
    "lr": 0.01,
    "momentum": 0.5,
    "protocols": ("unseen",),
}
IMAGES: dict[str, Any] = {
    "data_options": {"size": 224},
    "pixels": "imagenet",
    "augment": "csac",
    "backbone": "resnet18",
    "backbone_options": {"bottleneck": 256},
    "steps": 200,
}
MNIST: dict[str, Any] = {"pixels": "unit", "backbone": "mnist-cnn", "steps": 100}
# From scratch so few steps need a larger rate; torchvision's stem costs a fifth of the small one.
SMALL_IMAGES: dict[str, Any] = {
    "data_options": {"size": 48},
    "backbone_options": {"width": 0.25, "bottleneck": 64},
    "rounds": 12,
    "steps": 20,
    "batch_size": 32,
    "lr": 0.05,
    "evaluate_every": 3,
}
FROM_IMAGENET: dict[str, Any] = IMAGES | {
    "pixels": "inception",
    "backbone": "efficientnet-lite0",
    "backbone_options": {"bottleneck": 256, "pretrained": "imagenet"},
}
FEW_STEPS: dict[str, Any] = {
    "data_options": {"size": 64},
    "rounds": 8,
    "steps": 10,
    "batch_size": 16,
    "evaluate_every": 4,
}
BENCH_MNIST: dict[str, Any] = {
    "lr": 0.1,
    "rounds": 20,
    "steps": 30,
    "batch_size": 32,
    "evaluate_every": 1,
}
BENCH_IMAGES: dict[str, Any] = {
    "data_options": {"size": 48},
    "backbone_options": {"width": 0.25, "stem": "small", "bottleneck": 64},
    "rounds": 40,
    "steps": 40,
    "batch_size": 32,
    "evaluate_every": 2,
}
BENCH_IMAGENET: dict[str, Any] = FEW_STEPS | {"rounds": 20, "steps": 10, "evaluate_every": 1}
SMALL_IMAGENET: dict[str, Any] = FEW_STEPS | {"lr": 0.05, "rounds": 12, "evaluate_every": 6}
SMALL_MNIST: dict[str, Any] = BENCH_MNIST | {"rounds": 8, "steps": 20, "evaluate_every": 2}


for _name, _data, _domains, _own, _laptop, _bench in (
    ("pacs", "pacs", PACS, IMAGES, SMALL_IMAGES, BENCH_IMAGES),
    ("pacs-imagenet", "pacs", PACS, FROM_IMAGENET, SMALL_IMAGENET, BENCH_IMAGENET),
    ("vlcs", "vlcs", VLCS, IMAGES | {"lr": 0.001}, SMALL_IMAGES, None),
    ("office-caltech-home", "office-caltech-home", HOME, IMAGES, SMALL_IMAGES, None),
    ("rotated-mnist", "rotated-mnist", ANGLES, MNIST, SMALL_MNIST, BENCH_MNIST),
):
    for _target in _domains:
        of_paper(
            f"csac/{_name}/{_target.replace('_', '-')}",
            f"CSAC on {_name}: {_target} is never seen.",
            "CSAC, TKDE 2023",
            values=COMMON | _own | {"data": _data} | leave_out(_target, _domains),
            laptop=_laptop,
            bench=_bench,
        )
