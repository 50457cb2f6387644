"""A site's inputs never end in a file or a message: all that a visit keeps or sends is searched.

Parts may hold inputs in ``client.scratch`` while a visit lasts. ``engine.visit`` asks an
:class:`InputGuard` about everything that outlives the visit: the client's state, its summaries and
its updates. Values are compared, so copies in another precision or another batch shape are found as
well. It must cost next to nothing where no tensor has the shape of inputs, which is the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

import torch
from torch import Tensor

from fedshift.base import seeds
from fedshift.base.errors import RunError
from fedshift.core.client import Client
from fedshift.data.federation import Site
from fedshift.data.samples import Samples

WIDE = 64  # numbers per input from which on inputs are compared by random projections
PROJECTIONS = 24
CLOSE = 0.01  # relative distance up to which a wide row is a copy: float16, bfloat16 or bytes
SAME = 1e-6  # the same for narrow rows, of which some are close to each other by chance
REMEMBERED = 64  # sites whose projected samples are kept


class InputGuard:
    """Finds the inputs of a client's samples, and of a visit's batches, among other tensors.

    Inputs of at least ``WIDE`` numbers are compared through a fixed random projection: a copy keeps
    its distance of nearly zero, and two unrelated rows stay apart. A site's samples are projected
    once; batches are recorded (:meth:`record`) only where augmentation or a part changes them,
    since they are samples otherwise.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.width = torch.Size(shape).numel()  # numbers of one input
        stored = (*shape[1:], shape[0]) if len(shape) == 3 else shape
        self.shapes = {shape, stored, (self.width,)} if self.width > 1 else set()
        self.close = 3 * CLOSE if self.width >= WIDE else SAME  # projected distances scatter
        self.device = device
        self._sites: dict[str, Tensor] = {}
        self._visit: list[Tensor] = []

    @cached_property
    def matrix(self) -> Tensor:
        """The projection (width, p), the same on every machine; the identity for narrow inputs."""
        if self.width < WIDE:
            return torch.eye(self.width, dtype=torch.float64, device=self.device)
        generator = seeds.generator("inputs", self.width)
        return torch.randn(self.width, PROJECTIONS, generator=generator).to(self.device)

    def begin(self) -> None:
        """Forget the batches of the last visit."""
        self._visit = []

    def record(self, x: Tensor) -> None:
        """Remember a batch of inputs that are not samples as they are stored."""
        self._visit.append(self._projected(x.detach().flatten(1)))

    def refuse(self, entries: Mapping[str, Tensor], client: Client, where: str) -> None:
        """Raise if an entry contains an input, naming ``where`` and the entry.

        Only entries whose last dimensions are those of an input, stored or normalised, flat or not,
        are looked at. Rows without contrast (all zero, say) tell nothing and are passed over, and
        so is what the server has sent in this visit.
        """
        for key, value in entries.items():
            if not any(tuple(value.shape[-len(shape) :]) == shape for shape in self.shapes):
                continue
            if not any(same(value, sent) for sent in client.inbox.values()) and self._has_input(
                value, client
            ):
                raise RunError(
                    f"{where} contains an input of the site ({key}); what a visit keeps or sends "
                    "must not: put it into client.scratch, which is dropped when the visit ends"
                )

    def _has_input(self, value: Tensor, client: Client) -> bool:
        rows = value.detach().reshape(-1, self.width)
        rows = self._projected(rows[rows.amax(1) > rows.amin(1)])  # (m, p)
        if not len(rows):
            return False
        known = torch.cat([self._site(client.site), *self._visit])  # (n, p)
        length = known.norm(dim=1)  # (n,)
        near = self.close * length
        return any(bool((torch.cdist(some, known) <= near).any()) for some in rows.split(64))

    def _site(self, site: Site) -> Tensor:
        """The projected samples of a site, in every form in which they may be found."""
        if site.id not in self._sites:
            if len(self._sites) >= REMEMBERED:
                self._sites.clear()
            self._sites[site.id] = torch.cat([self._projected(x) for x in forms(site)])
        return self._sites[site.id]

    def _projected(self, rows: Tensor) -> Tensor:
        return rows.to(self.matrix.dtype) @ self.matrix


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same shape and values."""
    return a.shape == b.shape and torch.equal(a, b)


def forms(site: Site) -> Iterator[Tensor]:
    """Every sample of a site as flat rows (n, d): as a net sees it, and images as stored."""
    data = site.data
    held: Iterable[Samples | None] = (data.train, data.val, data.test, data.unlabelled)
    for samples in filter(None, held):
        for x, _ in samples.chunks() if len(samples) else ():
            yield x.flatten(1)
        for rows in samples.rows.split(512) if samples.x.dim() == 4 else ():
            images = samples.x[rows].float()  # (n, H, W, C)
            for layout in (images, images.permute(0, 3, 1, 2)):
                yield layout.flatten(1)
                yield layout.flatten(1) / 255
