"""Fails where a document links to a file or a heading that does not exist.

Usage: links.py <source folder>
"""
import pathlib
import re
import sys

LINK = re.compile(r"\]\(([^)\s]+)\)|\bsrc=\"([^\"]+)\"")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def headings(document):
    """The anchors of a document, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", title).lower()).replace(" ", "-") for title in titles}


def broken(document):
    """The links of a document that lead nowhere."""
    for found in LINK.finditer(CODE.sub("", document.read_text(encoding="utf-8"))):
        link = found[1] or found[2]
        if not re.match(r"[a-z]+:", link):
            path, _, anchor = link.partition("#")
            target = (document.parent / path) if path else document
            if not target.exists() or (anchor and anchor not in headings(target)):
                yield link


def main():
    source = pathlib.Path(sys.argv[1])
    documents = [*source.glob("*.md"), *(source / "docs").glob("*.md"), source / "bench/results/README.md",
                 source / "data/masks/README.md", source / "python/README.md"]
    faults = [f"{document}: {link} leads nowhere" for document in documents for link in broken(document)]
    for fault in faults:
        print(fault, file=sys.stderr)
    return len(faults) > 0


sys.exit(main())
