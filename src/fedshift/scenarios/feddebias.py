"""FedDebias (FedBR, ICML 2023): extreme label skew together with rotation or domain skew.

Ten clients, all in every round, 50 local steps, SGD 0.001 (MNIST) or 0.01, batch 64 or 32, inputs
in [0, 1], nets without BatchNorm, 20 % of the training data held out; scored on the whole test set
at every angle. They report the mean of the five best rounds on the test set, an oracle; here
validation data select. CIFAR-10 and CIFAR-100 serve as each other's public set, which a method sees
only if public_set is allowed.
"""

from __future__ import annotations

from typing import Any

from fedshift.data.dealing.label_skew import SequentialDirichlet
from fedshift.data.dealing.partitions import ClassHalves
from fedshift.data.dealing.splits import Given
from fedshift.scenarios.papers import of_paper

ANGLES = tuple(f"deg{angle}" for angle in range(0, 136, 15))
PACS = ("photo", "art_painting", "cartoon", "sketch")
COMMON: dict[str, Any] = {
    "split": Given(val=0.2),
    "pixels": "unit",
    "backbone": "vgg11",
    "rounds": 1000,
    "steps": 50,
    "batch_size": 32,
    "lr": 0.01,
    "weights": "uniform",
    "protocols": ("global",),
}
# LeNet learns in a minute or two; the paper's nets, even narrow ones, are at chance then.
LAPTOP: dict[str, Any] = {
    "backbone": "lenet",
    "rounds": 100,
    "steps": 10,
    "batch_size": 32,
    "lr": 0.2,
    "lr_decay": 0.977,  # to a tenth in all
    "momentum": 0.0,
    "evaluate_every": 20,
}
BENCH: dict[str, Any] = {
    "backbone_options": {"width": 0.25},
    "rounds": 60,
    "steps": 20,
    "evaluate_every": 5,
}
# Rotated MNIST has LeNet: the paper's net, even at a quarter of its width, is at 20 % after 30
# rounds, which take as long as 80 of LeNet. Its rate falls to a tenth over the run, so that FedAvg
# ends on a plateau: at a constant rate it still gains 2 points in the last 20 of 80 rounds.
ALIGNED: dict[str, Any] = {"data_options": {"disjoint": False}, "domains": ANGLES}


for _name, _own, _bench in (
    (
        "rotated-mnist",
        ALIGNED
        | {"data": "rotated-mnist-10", "backbone": "feddebias-cnn", "lr": 0.001, "batch_size": 64}
        | {"partition": SequentialDirichlet(clients=10, within="aligned")},
        {"lr": 0.2, "lr_decay": 0.9747, "batch_size": 32, "rounds": 90, "evaluate_every": 5}
        | {"backbone": "lenet", "backbone_options": {}},
    ),
    (
        "cifar10",
        ALIGNED
        | {"data": "rotated-cifar10", "public": "cifar100"}
        | {"partition": SequentialDirichlet(clients=10, within="aligned", mixing=1.0)},
        {"lr": 0.1},
    ),
    (
        "clean-cifar10",
        {"data": "cifar10", "domains": ("cifar10",), "public": "cifar100"}
        | {"partition": SequentialDirichlet(clients=10)},
        {"lr": 0.1},
    ),
    (
        "cifar100",
        {"data": "cifar100", "domains": ("cifar100",), "rounds": 800, "momentum": 0.9}
        | {"backbone": "cct-7-3x1", "pixels": "cifar100", "augment": "feddebias-cifar100"}
        | {"public": "cifar10"}
        | {"partition": SequentialDirichlet(clients=10, uniform_prior=True)},
        None,
    ),
    (
        "pacs",
        {"data": "pacs", "domains": PACS, "data_options": {"size": 32}, "rounds": 400}
        | {"partition": ClassHalves()},
        {"lr": 0.1},
    ),
):
    of_paper(
        f"feddebias/{_name}",
        f"FedDebias on {_own['data']}: extreme label skew; global model on every look.",
        "FedDebias, ICML 2023",
        values=COMMON | _own,
        laptop=LAPTOP,
        bench=BENCH | _bench if _bench is not None else None,
    )
