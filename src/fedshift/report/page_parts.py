"""What pages are made of: templates, styles and scripts of the folder ``page``, and their policy.

``report.html`` and ``report.web`` use it. A page holds its scripts in itself, and its
Content-Security-Policy names them by their hashes: the browser runs these and no others, even if
something from a run came into the page as markup. Nothing may be loaded from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

LIBRARIES = ("d3.min.js", "plot.umd.min.js", "charts.js")
POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; "
    "connect-src {connect}; base-uri 'none'; form-action 'none'"
)


@cache
def part(name: str) -> str:
    """A file of the folder ``page``."""
    return resources.files("fedshift.report").joinpath("page", name).read_text("utf-8")


def policy(scripts: Sequence[str], connect: str = "'none'") -> str:
    """The policy of a page with these scripts.

    >>> policy(["", "let a = 1"]).split("; ")[1][:62]
    "script-src 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"
    """
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in scripts)
    allowed = " ".join(f"'sha256-{digest.decode()}'" for digest in hashes)
    return POLICY.format(scripts=allowed, connect=connect)


def render(template: str, script: str, *, connect: str = "'none'", **values: Any) -> str:
    """A page from a template; ``script`` is run in it, after the libraries."""
    scripts = [part(name) for name in (*LIBRARIES, script)]
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(part(template)).render(
        scripts=[Markup(text) for text in scripts],  # noqa: S704  our own files
        style=Markup(part("page.css")),  # noqa: S704
        policy=Markup(policy(scripts, connect)),  # noqa: S704  the hashes of our own files
        **values,
    )


def data_block(value: Any) -> Markup:
    r"""JSON for a ``<script type="application/json">``: no text in it can end the element.

    >>> print(data_block({"a": "</script>&"}))
    {"a":"\u003c/script\u003e\u0026"}
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)  # noqa: S704  escaped above
