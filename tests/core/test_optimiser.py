"""Steps of the optimisers against their formulas."""

import numpy as np
import torch
from torch import nn

from fedshift.core.optimiser import Optimisation

LR, MOMENTUM, DECAY = 0.3, 0.9, 0.1


def parameters(*shapes):
    g = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=g)) for shape in shapes]


def test_a_step_is_the_textbook_formula_with_momentum_and_decay():
    (p,) = parameters((4, 3))
    g = torch.Generator().manual_seed(1)
    gradients = [torch.randn(4, 3, generator=g) for _ in range(3)]
    theta, velocity = p.detach().numpy().copy(), np.zeros((4, 3))
    optimiser = Optimisation("sgd", LR, MOMENTUM, DECAY).build([p])
    for gradient in gradients:
        p.grad = gradient.clone()
        optimiser.step()
        velocity = MOMENTUM * velocity + gradient.numpy() + DECAY * theta
        theta = theta - LR * velocity
    np.testing.assert_allclose(p.detach().numpy(), theta, rtol=1e-5)


def test_many_steps_are_those_of_torch_to_the_bit():
    ours, theirs = parameters((5, 7), (3,), ()), parameters((5, 7), (3,), ())
    optimisers = (
        Optimisation("sgd", LR, MOMENTUM, DECAY).build(ours),
        torch.optim.SGD(theirs, LR, MOMENTUM, weight_decay=DECAY, fused=True),
    )
    g = torch.Generator().manual_seed(2)
    for _ in range(4):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=g)
            b.grad = a.grad.clone()
        for optimiser in optimisers:
            optimiser.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_parameter_without_gradient_stays_and_starts_afresh_when_it_gets_one():
    still, moved = parameters((2,), (2,))
    before = still.detach().clone()
    optimiser = Optimisation("sgd", LR, MOMENTUM).build([still, moved])
    moved.grad = torch.ones(2)
    optimiser.step()
    assert torch.equal(still, before)
    still.grad, moved.grad = torch.ones(2), None
    optimiser.step()
    torch.testing.assert_close(still.detach(), before - LR)


def test_another_rate_counts_from_the_next_step():
    (p,) = parameters((2,))
    before = p.detach().clone()
    optimiser = Optimisation("sgd", LR).build([p])
    optimiser.param_groups[0]["lr"] = 2.0
    p.grad = torch.ones(2)
    optimiser.step()
    torch.testing.assert_close(p.detach(), before - 2.0)


def test_nothing_to_move_is_no_error():
    Optimisation("sgd", LR).build(parameters((2,))).step()
