"""FDSE's extractor has everything of the layer that it stands for, but fewer outputs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedshift.methods.fdse.layers import extractor


@pytest.mark.parametrize("mode", ["zeros", "reflect", "circular"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_convolution_s_first_outputs_are_those_of_its_extractor(mode, bias):
    f = nn.Conv2d(3, 8, (3, 5), stride=2, padding=(2, 4), dilation=2, bias=bias, padding_mode=mode)
    x = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    found = extractor(f, 4, "same")(x)
    torch.testing.assert_close(found, f(x)[:, :4])


def test_half_padding_is_half_the_kernel():
    f = nn.Conv2d(3, 8, (3, 5), padding=0)
    assert extractor(f, 4, "half").padding == (1, 2)
    assert extractor(f, 4, "same").padding == (0, 0)
