"""Heads that the server hands on: what COPA and FedPAC have in common."""

from __future__ import annotations

from fedshift import ConfigError, ModelSpec, head_keys


def require_uploaded_head(part: str, model: ModelSpec) -> None:
    """Raise if heads do not reach the server, as they do where another part makes them private."""
    if head_keys(model.net) - model.personal:
        raise ConfigError(
            f"{part} passes heads on, and another part keeps them at the sites; drop the part that "
            "makes the head private"
        )
