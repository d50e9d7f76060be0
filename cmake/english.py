"""Finds habits in comments, messages and documents that send a reader elsewhere for what a sentence is about.

Usage: english.py [file...]; without files, in all that git tracks

HABITS lists them, each with what to write instead. Data, fixtures, results and other people's files are left out.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
C_KINDS = (".c", ".cl", ".cpp", ".cu", ".cuh", ".h", ".hpp")
KINDS = (*C_KINDS, ".cmake", ".in", ".md", ".py", ".sh", ".txt", "Makefile", ".ci/run")
LEFT_OUT = ("bench/results/", "cmake/THIRD_PARTY_NOTICES.in", "cmake/english.py", "data/", "third_party/",
            "tests/documents/test_english.py", "tests/fixtures/", "tests/fuzz/corpus/")

# Stands where a comment, a documentation string, a string, or in a document a paragraph or an item of a list begins.
START = "\x02"
# Letters without which there is no match, which saves time; the habit; what is wrong, and what to write.
HABITS = (
    ("Of", START + r"\s*Of\s+[\w{`%]", "begins with 'Of': name what it is about first"),
    ("Of", r"(?<=[.:;!?)])\s+Of\b", "a sentence begins with 'Of': name what it is about first"),
    ("Th", START + r"\s*(Those|That\s+(of|for|which))(\s+\w|\.)", "begins with a pronoun: repeat the noun"),
    ("", START + r"\s*(Whose|Nor|And|Or)\s+[\w`]", "continues a sentence from elsewhere: write a whole one"),
    ("The", START + r"\s*The\s+same\b", "begins with 'The same': say what it is"),
    ("many", r"\b[Ss]o\s+many\b", "'so many': name the number, as in '`count` rows'"),
    ("manyth", r"\bmanyth\b", "'so manyth': 'every n-th'"),
    ("ikewise", r"\b[Ll]ikewise\b", "'likewise': say again what is true"),
    ("such", r"\b([Ee]very|[Ee]ach)\s+such\b", "'every such': repeat the noun"),
    ("how", r"\b[Bb]y\s+how\s+much\b", "'by how much': name the difference"),
    ("ut", r"\b[Bb]ut\s+for\b", "'but for': 'except'"),
    ("theta", r'"[^"\n]*\b(a|an|illegal|the) theta\b[^"\n]*"', "a message about a theta: 'schedule'"),
)


def spaces(text):
    """As many characters and lines as `text` has, without words."""
    return re.sub(r"[^\n]", " ", text)


def prose(text, kind):
    """`text` with START where a piece of prose begins, and without the marks of comments and strings inside a piece.
    Lines keep their numbers."""
    if kind == ".md":
        return re.sub(r"(?m)^(?<=\n\n)(?=\w)|^[ \t]*([*-]|\d+\.|#+)(?=[ \t])", START, text)
    mark = "//" if kind in C_KINDS else "#"
    lines, column = text.split("\n"), -1
    for number, line in enumerate(lines):
        # Lines with the mark in one column are one comment.
        at = line.find(mark)
        if at >= 0 and at == column and not line[:at].strip():
            lines[number] = line[at + len(mark):]
        column = at
    text = re.sub(r"(?m)^[ \t]*\*(?!/)", "", "\n".join(lines))
    text = re.sub(r'"[ \t]*\n[ \t]*[fL]?"(?!")', lambda match: spaces(match[0]), text)
    comment = r"//+[/!]?<?(?=\s)|/\*+!?<?(?=\s)" if mark == "//" else r"(?m)(?:^|(?<=\s))#+(?=\s)"
    return re.sub(comment + r'|(?:"""|")(?=\w)', lambda match: match[0] + START, text)


def findings(text, kind):
    """The line and the fault of each habit in the text of a file whose name ends in `kind`, for instance ".cpp"."""
    view = prose(text, kind)
    found = []
    for letters, habit, fault in HABITS:
        for match in re.finditer(habit, view) if letters in view else ():
            first_word = match.start() + re.search(r"[\w\"]", match[0]).start()
            found.append((view.count("\n", 0, first_word) + 1, fault))
    return sorted(found)


def tracked_files():
    """The files that git tracks, or in a copy without git's folder, those outside of hidden and build folders."""
    tracked = subprocess.run(("git", "ls-files"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return tracked.stdout.splitlines() if tracked.returncode == 0 else [
        str(path.relative_to(ROOT)) for path in sorted(ROOT.rglob("*")) if path.is_file()
        and not any(part == "build" or part.startswith(".") for part in path.relative_to(ROOT).parts)]


def check(files):
    """Prints the findings in files, given by their paths from the root. Returns whether there are none."""
    good = True
    for file in files:
        if file.endswith(KINDS) and not file.startswith(LEFT_OUT) and (ROOT / file).is_file():
            for line, fault in findings((ROOT / file).read_text(encoding="utf-8"), pathlib.Path(file).suffix):
                print(f"{file}:{line}: {fault}")
                good = False
    return good


if __name__ == "__main__":
    sys.exit(0 if check(sys.argv[1:] or tracked_files()) else 1)
