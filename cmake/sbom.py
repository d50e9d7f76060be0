"""Prints a bill of materials in CycloneDX's JSON: the projects whose code is in a release, and its files with their
checksums.

Usage: sbom.py <version> <folder of the release's files>. Its THIRD_PARTY_NOTICES list the projects.
"""

import hashlib
import json
import pathlib
import re
import sys

# Between lines of =: name and version, licence, home page, where it is.
HEADING = re.compile(r"^={40,}\n(.+) (\S+)\n(.+)\n(https?://\S+)\n(.+)\n={40,}$", re.MULTILINE)
SPDX = re.compile(r"[\w.-]+")


def component(name: str, version: str, licence: str, url: str, where: str) -> dict:
    """What a heading of the notices says. A licence in one word is an identifier of SPDX."""
    return {
        "type": "library",
        "name": name,
        "version": version,
        "description": where,
        "licenses": [{"license": {"id" if SPDX.fullmatch(licence) else "name": licence}}],
        "externalReferences": [{"type": "website", "url": url}],
    }


def file(path: pathlib.Path) -> dict:
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"type": "file", "name": path.name, "hashes": [{"alg": "SHA-256", "content": checksum}]}


def main() -> None:
    version, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    notices = (folder / "THIRD_PARTY_NOTICES").read_text(encoding="utf-8")
    headings = HEADING.findall(notices)
    if 2 * len(headings) != len(re.findall(r"^={100}$", notices, re.MULTILINE)):
        sys.exit("sbom.py: a heading of the notices is not four lines: name and version, licence, URL, where")
    product = {"type": "library", "name": "distile", "version": version, "licenses": [{"license": {"id": "Apache-2.0"}}]}
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": product},
        "components": [component(*heading) for heading in headings] + [file(path) for path in sorted(folder.iterdir())],
    }
    print(json.dumps(content, indent=2))


main()
