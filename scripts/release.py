"""What goes with a release: the packages, a requirements file locked by hashes, an SBOM, an audit.

``make release`` runs it in an environment that holds only the tools of ``release-tools.txt``, and
finds everything in ``dist``. The lock holds what pip resolves on this machine under
``constraints.txt``, with the SHA-256 of each file, and no address of an index, so that
``pip install --require-hashes -r requirements.txt`` works against any. The audit asks a service on
the internet; where none is reached, that is said, and the audit is left to a machine that has one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
EXTRAS = ("flower", "hub", "dicom", "privacy", "report", "tables", "text")
Package = Mapping[str, Any]
UNREACHED = ("ConnectionError", "ConnectError", "Max retries", "ServiceError", "timed out", "SSL")


def main(args: list[str]) -> int:
    """Make everything in ``dist``, or in the folder named; 1 if the audit finds something."""
    out = Path(args[0]).absolute() if args else ROOT / "dist"
    out.mkdir(parents=True, exist_ok=True)
    tool("build", "--outdir", str(out), str(ROOT))
    lock = out / "requirements.txt"
    lock.write_text(locked(resolved()))
    print(f"{lock}: {lock.read_text().count('==')} packages by version and hash")
    sbom = out / "sbom.json"
    tool("cyclonedx_py", "requirements", "--output-file", str(sbom), str(lock))
    print(f"{sbom}: {len(json.loads(sbom.read_text())['components'])} components (CycloneDX)")
    return audit(lock)


def tool(module: str, *args: str) -> None:
    """Run a tool of this environment; its failure ends the release."""
    subprocess.run([sys.executable, "-m", module, *args], check=True, cwd=ROOT)


def resolved() -> list[Package]:
    """What pip would install for fedshift with its extras, in an empty environment."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    command += ["--dry-run", "--ignore-installed", "--report", "-", "-c", "constraints.txt"]
    found = subprocess.run(
        [*command, f".[{','.join(EXTRAS)}]"], check=True, cwd=ROOT, capture_output=True, text=True
    )
    packages: list[Package] = json.loads(found.stdout)["install"]
    return packages


def locked(packages: Iterable[Package]) -> str:
    """Requirements by version and hash; what has no hash is our own folder, or an error."""
    lines = ["# pip install --require-hashes -r requirements.txt; then fedshift itself, --no-deps."]
    for package in sorted(packages, key=lambda one: str(one["metadata"]["name"]).lower()):
        name, version = package["metadata"]["name"], package["metadata"]["version"]
        told = package["download_info"]
        if "dir_info" in told:
            continue
        digest = told.get("archive_info", {}).get("hashes", {}).get("sha256")
        if digest is None:
            raise SystemExit(f"the index gives no SHA-256 of {name} {version}; use one that does")
        lines.append(f"{name}=={version.partition('+')[0]} --hash=sha256:{digest}")
    return "\n".join(lines) + "\n"


def audit(lock: Path) -> int:
    """Known vulnerabilities of what is locked; 0 if there is none, or if nobody could be asked."""
    command = [sys.executable, "-m", "pip_audit", "--require-hashes", "--disable-pip"]
    found = subprocess.run(
        [*command, "-r", str(lock)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    said = found.stdout + found.stderr
    count, skipped = lock.read_text().count("=="), said.count("could not be audited")
    if skipped >= count or (found.returncode and any(word in said for word in UNREACHED)):
        print(
            "pip-audit: no advisory service was reached, so nothing was audited; run\n"
            f"  pip-audit --require-hashes --disable-pip -r {lock.name}\n"
            "where there is internet, before the release is published"
        )
        return 0
    print(said.strip())
    print(f"pip-audit: {count - skipped} of {count} packages were audited")
    return found.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
