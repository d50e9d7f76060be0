"""Files of results as text: JSON with a line for each member, and for each object of an array, as plans/json_rows.h
writes it. Every reader of JSON reads them, and a change shows as the rows that changed.

    json_rows.py FILE...    # writes files anew in this form
"""
import json
import os
import pathlib
import sys


def text(content):
    if isinstance(content, dict) and content:
        members = ",\n ".join(f"{flat(name)}: {rows(value, ' ')}" for name, value in content.items())
        return f"{{\n {members}\n}}\n"
    return rows(content, "") + "\n"


def rows(value, margin):
    """An array of objects has a line for each; what else there is stands in one."""
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        lines = ",\n".join(f"{margin} {flat(one)}" for one in value)
        return f"[\n{lines}\n{margin}]"
    return flat(value)


def flat(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def write(path, content):
    """Replaces a file as a whole, so that a killed program leaves the old one or the new one."""
    path = pathlib.Path(path)
    part = path.with_name(path.name + ".part")
    part.write_text(text(content), encoding="utf-8")
    os.replace(part, path)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write(name, json.loads(pathlib.Path(name).read_text(encoding="utf-8")))
