"""The parts of the compact transformer against torch's own and against identities."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedshift.backbones import cct
from fedshift.base import seeds


def test_weights_of_cct_are_drawn_as_its_authors_draw_them():
    with seeds.fork("cct"):
        net = cct.cct_7_3x1((3, 32, 32), 5)
    spreads = {"tokens.3.weight": 0.2, "block1.attention.qkv.weight": 0.02, "head.weight": 0.02}
    for key, spread in spreads.items():
        assert float(net.get_parameter(key).detach().std()) == pytest.approx(spread, rel=0.05), key
    assert not net.get_parameter("block1.mlp.0.bias").any()


def test_stochastic_depth_grows_from_zero_to_its_value_and_keeps_the_mean():
    net = cct.cct_7_3x1((3, 32, 32), 10)
    rates = [net.get_submodule(f"block{i}").drop_path.rate for i in range(1, 8)]
    assert rates == pytest.approx([0, 1 / 60, 2 / 60, 3 / 60, 4 / 60, 5 / 60, 0.1])
    with seeds.fork("path"):
        kept = cct.DropPath(0.25).train()(torch.ones(4000, 2, 3))
    values = torch.unique(kept)
    assert values.tolist() == pytest.approx([0, 4 / 3])
    assert (kept == kept[:, :1, :1]).all()  # a whole image at a time
    assert abs(float(kept.mean()) - 1) < 0.05


def test_a_cct_block_is_torchs_pre_norm_encoder():
    theirs = nn.TransformerEncoderLayer(
        16, cct.HEADS, 32, 0.0, "gelu", batch_first=True, norm_first=True
    )
    ours = cct.Encoder(16, dropout=0.0, drop_path=0.0, residual="plain")
    nn.init.zeros_(theirs.self_attn.in_proj_bias)  # ours has none
    pairs = [
        (ours.attention.qkv.weight, theirs.self_attn.in_proj_weight),
        *zip(ours.attention.out.parameters(), theirs.self_attn.out_proj.parameters(), strict=True),
        *zip(ours.mlp[0].parameters(), theirs.linear1.parameters(), strict=True),
        *zip(ours.mlp[2].parameters(), theirs.linear2.parameters(), strict=True),
    ]
    with torch.no_grad():
        for mine, other in pairs:
            mine.copy_(other)
    x = torch.randn(3, 7, 16, generator=seeds.generator("tokens"))
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-5, rtol=1e-4)


def test_the_released_cct_block_continues_from_the_normalised_tokens():
    block = cct.Encoder(16, dropout=0.0, drop_path=0.0, residual="normed")
    for parameter in (*block.attention.out.parameters(), *block.mlp[2].parameters()):
        nn.init.zeros_(parameter)  # both branches are silent
    x = torch.randn(3, 7, 16, generator=seeds.generator("tokens"))
    torch.testing.assert_close(block(x), F.layer_norm(x, (16,)))
    block.normed = False
    assert torch.equal(block(x), x)


def test_sequence_pooling_without_scores_is_the_mean_of_the_tokens():
    pool = cct.SequencePool(16)
    nn.init.zeros_(pool.score.weight)
    x = torch.randn(3, 7, 16, generator=seeds.generator("tokens"))
    torch.testing.assert_close(pool(x), F.layer_norm(x, (16,)).mean(1), atol=1e-6, rtol=1e-4)
