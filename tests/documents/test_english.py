"""Shows that cmake/english.py finds each of its habits, where they are, and nothing in honest text.

Usage: test_english.py <source folder>
"""
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(sys.argv[1]) / "cmake"))
import english  # noqa: E402 (the folder is an argument)

# The kind of a file, its text, and the lines on which there is a habit, with words of its fault.
FOUND = (
    (".h", "/** Of a thread. */\nint registers;\n", {1: "'Of'"}),
    (".h", "int registers; /**< Of a thread. */\nint tile; ///< Of a\n", {1: "'Of'", 2: "'Of'"}),
    (".cpp", "int a;\n/** \\file\n * Tiles. Of a row, each\n * has one. */\n", {3: "'Of'"}),
    (".cpp", "x();  // Rows:\n      // of two, Of\n", {}),
    (".cpp", "x();  // Rows are first.\n// Of these\n", {2: "'Of'"}),
    (".cu", "// Those that copy\n", {1: "pronoun"}),
    (".cuh", "/** That of a lane. */\n", {1: "pronoun"}),
    (".py", "rows = 1  # Those of a task.\n", {1: "pronoun"}),
    (".py", 'def rows():\n    """Whose rows these are."""\n', {2: "continues"}),
    (".txt", "# And some more.\nset(a b)\n", {1: "continues"}),
    (".cmake", "set(a b)\n\n# Nor is it\n# there.\n", {3: "continues"}),
    (".cl", "/** The same for\n * two. */\n", {1: "'The same'"}),
    (".cpp", "/**\n * The same for two.\n */\n", {2: "'The same'"}),
    (".md", "# Rows\n\nText.\n\nThe same holds.\n* The same\n", {5: "'The same'", 6: "'The same'"}),
    (".sh", "# ends after so\n# many seconds\n", {1: "'so many'"}),
    (".cpp", 'help("End after so "\n     "many seconds");\n', {1: "'so many'"}),
    (".h", "/** Takes every so manyth key. */\n", {1: "manyth"}),
    (".h", "int a; /**< Likewise. */\n", {1: "'likewise'"}),
    (".md", "| a | b; likewise |\n", {1: "'likewise'"}),
    (".h", " * and for every\n * such device.\n", {1: "'every such'"}),
    (".h", "/** By how much it differs. */\n", {1: "'by how much'"}),
    (".cpp", '    fail("all but for one");\n', {1: "'but for'"}),
    (".cpp", '    fail("the theta is not legal: " + why);\n', {1: "'schedule'"}),
    (".py", 'raise ValueError(f"Of {count} rows one is missing")\n', {1: "'Of'"}),
    (".cpp", 'TEST_CASE("Of two variants the first is taken")\n', {1: "'Of'"}),
)
HONEST = (
    (".h", "/** The rows of a task, of which those that copy come first, as in the same order. */\n"),
    (".cpp", "// A row has so much\n// more; not so, many have.\n"),
    (".cpp", "// Rows are the tokens\n// Of; of\nint Of, Those;\n"),
    (".cpp", 'const char *const names[] = {"And", "Or", "Of", "Those"};\n'),
    (".py", 'nodes = ["Add", "And", "Or", "Not"]  # also many others\n'),
    (".py", "theta = 1  # The theta is a point.\n"),
    (".md", "Text of the same kind, but not for rows.\n\n| the same | the same |\n"),
    (".sh", 'show --theta "$theta" # As such.\n'),
)


def faults_by_line(found):
    """The faults of findings, by line."""
    lines = {}
    for line, fault in found:
        lines.setdefault(line, []).append(fault)
    return lines


def main():
    shown = set()
    for kind, text, expected in FOUND:
        found = faults_by_line(english.findings(text, kind))
        assert found.keys() == expected.keys(), f"{text!r} has findings on lines {found}, not {expected}"
        for line, words in expected.items():
            assert any(words in fault for fault in found[line]), f"line {line} of {text!r}: {found[line]}"
            shown.update(found[line])
    missing = {fault for *_, fault in english.HABITS} - shown
    assert not missing, f"no text here shows {missing}"
    for kind, text in HONEST:
        found = english.findings(text, kind)
        assert not found, f"{text!r} is honest, but {found}"

    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "rows.h"
        for text, status, printed in (("int a;\n\n// Those.\n", 1, f"{file}:3: begins with a pronoun"), ("int a;\n", 0, "")):
            file.write_text(text)
            run = subprocess.run((sys.executable, english.__file__, str(file)), stdout=subprocess.PIPE, text=True)
            assert run.returncode == status and run.stdout.startswith(printed), f"{text!r}: {run}"
            assert bool(run.stdout) == bool(printed), run.stdout
    print("all right")


main()
