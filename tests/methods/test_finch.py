"""Sarfraz et al., CVPR 2019: first-neighbour clusters."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedshift.methods.shared.finch import cluster_means, finch, first_neighbours, link

NESTED = (0, 1, 5, 6, 20, 21, 25, 26)


def at(*degrees):
    """Points on the unit circle."""
    angles = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def cosine(x):
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return unit @ unit.T


def step(x):
    """Eq. 1: A(i, j) = 1 if j is i's first neighbour, i is j's, or both have the same one."""
    n = len(x)
    if n == 1:
        return [{0}]
    near = cosine(x)
    np.fill_diagonal(near, -np.inf)
    kappa = near.argmax(1)
    linked = [
        [j == kappa[i] or kappa[j] == i or kappa[i] == kappa[j] for j in range(n)] for i in range(n)
    ]
    groups, left = [], set(range(n))
    while left:
        open_, group = [min(left)], set()
        while open_:
            i = open_.pop()
            if i not in group:
                group.add(i)
                open_ += [j for j in range(n) if linked[i][j]]
        groups.append(group)
        left -= group
    return groups


def reference(x):
    """The hierarchy as sets of rows, its last partition before everything is one."""
    groups = step(x)
    while True:
        means = np.stack([x[sorted(g)].mean(0) for g in groups])
        coarser = [set().union(*(groups[i] for i in g)) for g in step(means)]
        if len(coarser) == 1:
            return groups
        groups = coarser


def as_sets(labels):
    return {frozenset(np.flatnonzero(labels == c).tolist()) for c in np.unique(labels)}


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        (at(17), [0]),
        (at(0, 90), [0, 0]),
        (at(0, 1, 120), [0, 0, 0]),
        (at(0, 1, 90, 91), [0, 0, 1, 1]),
        (at(0, 90, 1, 91), [0, 1, 0, 1]),
        (at(0, 2, 5, 9), [0, 0, 0, 0]),  # a chain: each one's neighbour is the one before
        (at(0, 1, 10, 11, 90, 91, 100, 101), [0, 0, 0, 0, 1, 1, 1, 1]),  # four pairs, then two
        (at(*NESTED, *(d + 90 for d in NESTED)), [0] * 8 + [1] * 8),  # eight pairs, four, two
    ],
)
def test_finch_finds_the_clusters_one_can_see(points, expected):
    assert finch(points).tolist() == expected


def test_the_first_partition_is_finer_than_the_last():
    assert link(at(0, 1, 10, 11, 90, 91, 100, 101)).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_neighbours_are_by_angle_not_by_distance():
    points = at(0, 5, 80, 85) * torch.tensor([[1.0], [50.0], [1.0], [50.0]])
    assert first_neighbours(points).tolist() == [1, 0, 3, 2]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 21, 60])
def test_finch_is_the_hierarchy_written_out(n):
    rng = np.random.default_rng(n)
    several = 0
    for _ in range(40):
        x = rng.normal(size=(n, 3)) * rng.uniform(0.1, 10, (n, 1))
        found = finch(torch.from_numpy(x)).numpy()
        assert as_sets(found) == set(map(frozenset, reference(x)))
        several += len(as_sets(found)) > 1
    assert (several > 0) == (n >= 4)  # two or three points are always one cluster


def test_means_are_those_of_each_cluster():
    x = np.random.default_rng(0).normal(size=(5, 3))
    found = cluster_means(torch.from_numpy(x), torch.tensor([1, 0, 1, 1, 0]))
    np.testing.assert_allclose(found.numpy(), [x[[1, 4]].mean(0), x[[0, 2, 3]].mean(0)])


def test_single_precision_and_equal_points_do_no_harm():
    assert finch(torch.ones(6, 4)).tolist() == [0] * 6
    assert finch(torch.zeros(5, 4)).tolist() == [0] * 5
