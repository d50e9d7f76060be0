#!/usr/bin/env python3
"""Writes what documents show of committed results: a table, or a figure in a sentence, between <!-- begin NAME --> and
<!-- end -->, and the picture docs/gain.svg.

    bench/tables/write.py [FOLDER]    # of this repository, or copies of its documents in a folder
"""
import json
import pathlib
import re
import sys

import devices
import first_screen
import general
import groups
import items
import networks
import pruned
import rows
import screen
import searches
import values

sys.path.append(str(rows.REPOSITORY / "python/zoo"))
import results as zoo

PART = re.compile(r"(<!-- begin ([^>]+) -->)(.*?)(<!-- end -->)", re.DOTALL)


def parts():
    tables = {f"device {name}": devices.table(name) for name in devices.DEVICES}
    models = json.loads((rows.REPOSITORY / "python/zoo/results/zoo.json").read_text(encoding="utf-8"))
    tables["zoo"] = zoo.summary(models, 12) + "\n"
    return {**tables, **values.values(), **networks.parts(), **screen.parts(), **searches.parts(), **pruned.parts(),
            **first_screen.parts(), **general.parts(), **groups.parts(), **items.parts()}


def fill(document, known, used):
    """The text with its parts as they should be. Exits if it asks for one that nobody writes."""
    def part(found):
        begin, name, old, end = found.groups()
        if name not in known:
            sys.exit(f"error: {document} has the part '{name}', which bench/tables does not write")
        used.add(name)
        return begin + ("\n" if old.startswith("\n") else "") + known[name] + end
    return PART.sub(part, document.read_text(encoding="utf-8"))


def documents(folder):
    return [folder / "README.md", folder / "bench/results/README.md", *sorted((folder / "docs").glob("*.md"))]


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else rows.REPOSITORY
    known, used = parts(), set()
    texts = {document: fill(document, known, used) for document in documents(folder)}
    if used != known.keys():
        sys.exit(f"error: no document shows {', '.join(sorted(known.keys() - used))}")
    for document, text in texts.items():
        document.write_text(text, encoding="utf-8")
    (folder / "docs/gain.svg").write_text(first_screen.picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
