"""Finds circles of includes in the folders that are free of them. A header and its source are one module."""
import pathlib
import re

FREE = ("bindings", "generators", "kernels", "onnxruntime", "reference", "schedules")
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def module(path):
    return str(pathlib.PurePath(path).with_suffix(""))


def modules_of(root, files):
    """The modules of a folder, each with those of the folder that it includes."""
    modules = {module(file): set() for file in files}
    for file in files:
        included = {module(path) for path in INCLUDE.findall((root / file).read_text())}
        modules[module(file)] |= included & modules.keys() - {module(file)}
    return modules


def circle_in(modules):
    """Modules that include each other, each the next; empty if there are none."""
    done = set()

    def walk(name, path):
        if name in path:
            return [*path[path.index(name):], name]
        if name not in done:
            for included in sorted(modules[name]):
                if circle := walk(included, [*path, name]):
                    return circle
            done.add(name)
        return []

    return next((circle for name in sorted(modules) if (circle := walk(name, []))), [])


def check(root, sources):
    """Prints the first circle of each folder, and returns whether there are none."""
    good = True
    for folder in FREE:
        if circle := circle_in(modules_of(root, [file for file in sources if file.startswith(folder + "/")])):
            good = False
            print(f"{folder}/: includes in a circle: {' -> '.join(circle)}")
    return good
