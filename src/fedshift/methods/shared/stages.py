"""Which stages of a net a part works on: those with feature maps, chosen by position or name."""

from __future__ import annotations

import re

from fedshift import ConfigError, Net


def chosen_stages(net: Net, words: str, part: str, does: str = "works on") -> list[str]:
    """Stages of ``net`` that the option ``words`` selects, each with maps (C, H, W), in order.

    ``words`` is first, last, all, or names joined by + or a comma.
    """
    shapes = net.shapes()
    with_maps = [stage for stage in net.stages if len(shapes[stage]) == 3]
    if not with_maps:
        found = ", ".join(f"{stage} {shapes[stage]}" for stage in net.stages)
        raise ConfigError(
            f"{part} {does} feature maps (C, H, W), and no stage of this backbone gives any "
            f"({found}); use a convolutional one, such as resnet10 or cnn",
            "scenario.backbone=cnn",
        )
    ends = {"first": with_maps[:1], "last": with_maps[-1:], "all": with_maps}
    if words in ends:
        return ends[words]
    wanted = [word.strip() for word in re.split("[,+]", words)]
    for word in wanted:
        if word not in with_maps:
            raise ConfigError(
                f"{part}.stages names {word!r}, which is no stage with feature maps; this backbone "
                f"has {', '.join(with_maps)}; give some of them joined by +, or last, or all"
            )
    return [stage for stage in with_maps if stage in wanted]
