"""The page on which people try a served model, and the description of the service as OpenAPI.

Both are made here and load nothing from elsewhere: the usual page for OpenAPI comes from another
server. Names of classes and models may be anything, so they are escaped, and answers are written
as text, never as HTML.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from html import escape
from typing import Any

from fedshift.base.version import __version__

SCRIPT = """
const byId = (id) => document.getElementById(id);
byId("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const file = byId("file").files[0];
  if (!file) { return; }
  const kind = byId("form").dataset.kind === "images" ? (file.type || "image/png") : "text/csv";
  const headers = {"Content-Type": kind};
  const token = byId("token");
  if (token) { headers["Authorization"] = "Bearer " + token.value; }
  const out = byId("answer");
  out.textContent = "…";
  try {
    const reply = await fetch("predict", {method: "POST", headers: headers, body: file});
    const found = await reply.json();
    out.textContent = found.error || found.predictions.map(line).join("\\n");
  } catch (error) { out.textContent = "no answer: " + error.message; }
  if (kind !== "text/csv") { byId("shown").src = URL.createObjectURL(file); }
});
function line(one) {
  const p = Object.entries(one.probabilities || {}).sort((a, b) => b[1] - a[1]).slice(0, 5);
  const shares = p.map(([name, value]) => name + " " + (100 * value).toFixed(1) + " %");
  const energy = one.energy == null ? "" : "   energy " + one.energy.toFixed(3);
  return one.id + ": " + one.prediction + "   " + shares.join(", ") + energy;
}
"""
HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
CSP = (
    f"default-src 'none'; script-src 'sha256-{HASH}'; style-src 'unsafe-inline'; img-src blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:48rem;margin:2rem auto;padding:0 1rem}"
    "img{max-width:16rem;display:block;margin:1rem 0}pre{white-space:pre-wrap}"
)


def page(about: Mapping[str, Any], *, token: bool) -> str:
    """A form for one image or one csv, and the answer below."""
    images = len(about["shape"]) == 3
    what = "an image" if images else "a csv file"
    accepts = "image/*" if images else ".csv,text/csv"
    asked = '<p><label>Token <input id="token" type="password"></label></p>' if token else ""
    classes = ", ".join(escape(str(name)) for name in about["classes"][:50])
    return f"""<!DOCTYPE html>
<html lang="en-GB"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{escape(str(about["model"]))}</title>
<style>{STYLE}</style></head><body>
<h1>{escape(str(about["model"]))}</h1>
<p>{escape(str(about["method"]))}, {escape(str(about["task"]))}: {classes}.
Choose {what}; it is predicted and not kept.</p>
<form id="form" data-kind="{"images" if images else "table"}">{asked}
<p><input id="file" type="file" accept="{accepts}" aria-label="{what}"> <button>Predict</button></p>
</form>
<img id="shown" alt=""><pre id="answer" role="status"></pre>
<p>For programs: POST to /predict, described in <a href="openapi.json">openapi.json</a>;
/healthz and /metrics.</p>
<script>{SCRIPT}</script></body></html>
"""


def openapi(about: Mapping[str, Any]) -> dict[str, Any]:
    """The service as OpenAPI 3.1."""
    images = len(about["shape"]) == 3
    rows = {"type": "array", "items": {"type": "object"}, "minItems": 1}
    texts = {"type": "array", "items": {"type": "string", "format": "byte"}, "minItems": 1}
    own: dict[str, Any] = {"images": texts} if images else {"rows": rows}
    given = {**own, "inputs": {"type": "array", "minItems": 1}}
    content: dict[str, Any] = {
        "application/json": {"schema": {"type": "object", "properties": given}}
    }
    content["image/*" if images else "text/csv"] = {"schema": {"type": "string"}}
    one = {
        "id": {"type": "integer"},
        "prediction": {},
        "probabilities": {"type": "object", "additionalProperties": {"type": "number"}},
        "energy": {"type": "number", "description": "higher: less like the training data"},
    }
    found = {"type": "array", "items": {"type": "object", "properties": one}}
    answer = {"type": "object", "properties": {"model": {"type": "string"}, "predictions": found}}
    wrong = {
        "401": "token", "408": "too slow", "413": "too large", "415": "content type",
        "422": "not understood", "429": "too many requests", "503": "no answer in time",
    }  # fmt: skip
    responses: dict[str, Any] = {
        "200": {"description": "ok", "content": {"application/json": {"schema": answer}}}
    }
    responses |= {code: {"description": told} for code, told in wrong.items()}
    body = {"required": True, "content": content}
    plain = {"get": {"responses": {"200": {"description": "ok"}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": str(about["model"]), "version": __version__},
        "paths": {
            "/predict": {"post": {"requestBody": body, "responses": responses}},
            "/healthz": plain,
            "/metrics": plain,
        },
    }
