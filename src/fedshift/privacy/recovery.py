"""Secrets from shares at the server of secure aggregation, and who is to blame if they do not fit.

``secure`` calls :func:`recovered` once per mask that is left in a sum. Sites may return anything,
or have dealt anything, so a secret is compared with what its owner has published (a commitment to
its own mask's seed, the public half of its mask key). A site that sent something wrong must be
named, never another one that merely could not use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

from fedshift import RunError
from fedshift.base.logs import log
from fedshift.privacy import masks
from fedshift.privacy.shamir import SecretShare, join

TRIES = 2000  # subsets of shares that are tried before everybody is blamed


@dataclass(frozen=True)
class Dealt:
    """One site's secret: its owner, how many shares it takes, and whether a found one is right."""

    owner: str
    needed: int
    fits: Callable[[bytes], bool]


def recovered(
    dealt: Dealt, returned: Mapping[str, SecretShare], positions: Mapping[str, int]
) -> bytes:
    """The secret, from the shares that sites returned.

    A share at position 0 says that its site could not read what the owner had sent it. A share at
    another site's position, or one without which the others fit, is wrong: its site is named in the
    log and the round goes on. If nothing fits, the owner is to blame, for dealing wrong shares.
    """
    unread = sorted(site for site, (x, _) in returned.items() if x == 0)
    usable = {s: share for s, share in returned.items() if share[0] == positions.get(s)}
    if len(usable) < dealt.needed and unread:
        raise RunError(
            f"site {dealt.owner} sent secret shares that {', '.join(unread)} cannot read; leave it "
            "out, or repeat the round"
        )
    order = sorted(usable)
    for kept in islice(subsets(order, dealt.needed), TRIES):
        secret = as_bytes(join([usable[site] for site in kept]))
        if secret is not None and dealt.fits(secret):
            for site in sorted(returned.keys() - set(kept) - set(unread)):
                log.warning("site %s returned a wrong share of %s", site, dealt.owner)
            return secret
    raise RunError(
        f"the shares of {dealt.owner}'s secret do not fit what it has published: {dealt.owner} "
        "sent wrong ones; leave it out, or repeat the round"
    )


def subsets(sites: Sequence[str], least: int) -> Iterator[tuple[str, ...]]:
    """All sites, then all but one, and so on down to ``least`` of them."""
    return (kept for size in range(len(sites), least - 1, -1) for kept in combinations(sites, size))


def as_bytes(secret: int) -> bytes | None:
    """A secret as bytes; None if it is too large to be one."""
    try:
        return secret.to_bytes(masks.KEY, "little")
    except OverflowError:
        return None
