"""gPerXAN: shared instance norm beside private batch norm (Le et al., CVPR 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedshift import (
    Client,
    ConfigError,
    Method,
    Net,
    Part,
    Scope,
    Step,
    head_keys,
    register,
    setting,
    tree,
)
from fedshift.methods.fedbn import PrivateBatchNorm


class MixedNorm(nn.Module):
    """s_b BN(x) + s_i IN(x), (s_b, s_i) the softmax of two learnt scores, equal at the start.

    Both normalisations have an affine map, which begins as that of the BatchNorm it replaces.
    """

    def __init__(self, batch: nn.BatchNorm2d) -> None:
        super().__init__()
        self.batch = batch
        self.instance = nn.InstanceNorm2d(batch.num_features, eps=batch.eps, affine=True)
        if batch.affine:
            self.instance.load_state_dict(batch.state_dict(), strict=False)
        self.score_batch = nn.Parameter(torch.ones(()))
        self.score_instance = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, C, H, W) to the same shape."""
        share = torch.stack([self.score_batch, self.score_instance]).softmax(0)  # (2,)
        mixed: Tensor = share[0] * self.batch(x) + share[1] * self.instance(x)
        return mixed


@dataclass(frozen=True)
class AssembledNorm(Part):
    """Every BatchNorm of maps becomes a MixedNorm; its instance half and its scores are shared."""

    local_score: bool = setting(False, "the BatchNorm's score stays at the client, as released")

    def build(self, net: Net) -> None:
        """Replace the layers in place; raises where instances cannot be normalised."""
        found = [(path, m) for path, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)]
        if not found:
            raise ConfigError(
                f"{self.name} puts instance norm beside BatchNorm of maps, and this backbone has "
                "none; give one with BatchNorm on images, such as cnn or a resnet with norm=batch"
            )
        for path, batch in found:
            net.set_submodule(path, MixedNorm(batch))
        try:
            net.shapes()
        except ValueError as error:
            raise ConfigError(
                f"{self.name} normalises each map of an image, and inputs of shape {net.shape} "
                f"leave maps of one pixel in this backbone ({error}); give larger images or a "
                "shallower net"
            ) from error

    def scope(self, net: Net) -> Mapping[str, Scope]:
        """Shared, unless released code is followed."""
        mixed = [path for path, m in net.named_modules() if isinstance(m, MixedNorm)]
        keys = [f"{path}.score_batch" for path in mixed if self.local_score]
        return dict.fromkeys(keys, Scope.PRIVATE)


@dataclass(frozen=True)
class ReceivedHead(Part):
    """lam * CE(h(f(x)), y) with the received head h held fixed: it guides the body's features."""

    lam: float = setting(0.5, "weight of the received head's loss", low=0.0)

    def loss(self, client: Client, step: Step) -> Tensor | None:
        """The task loss of the received head on the client's features."""
        if not self.lam:
            return None
        prefix = f"{client.net.head_path}."
        received = tree.pick(client.received, head_keys(client.net))
        head = {k.removeprefix(prefix): v for k, v in received.items()}
        logits = functional_call(client.net.head_module, head, (step.out.features,))
        return self.lam * client.task.loss(logits, step.y)


@register("gperxan", paper="Le et al., CVPR 2024", group="personal")
def gperxan() -> Method:
    """Shared instance norm beside private batch norm, and a guiding head.

    Instance norm takes the style out of each image and is shared, batch norm keeps what tells the
    classes apart and stays at the site; a net learns how much of each it needs. The head that came
    from the server goes on judging the features while the site trains its own copy.

    Use it: images of several styles, for the sites themselves and for new ones.
    Not for: tables and other vectors, or nets without BatchNorm.
    Equations: the mixture: `MixedNorm`; the guidance: `ReceivedHead.loss`.
    """
    return Method((AssembledNorm(), PrivateBatchNorm(), ReceivedHead()))
