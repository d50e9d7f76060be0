"""Fails where a document holds a measured figure that no committed row stands behind, or text that `make bench-tables`
would write anew.

Usage: figures.py <source folder>
"""
import pathlib
import re
import subprocess
import sys
import tempfile

# Pages of experiments, whose figures are those of logs and reports.
EXPERIMENTS = {"autoscheduler.md", "tuning.md"}
NUMBER = r"(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
UNIT = r"(?:us|µs|ms|s|microseconds?|milliseconds?|seconds?|%|per cent|times(?! infinity)|GB/s|GF/s|cycles|bytes a cycle)"
FIGURE = re.compile(rf"(?<![\w.#-]){NUMBER}(?:\s+(?:to|and|or)\s+{NUMBER})?(?:\s|-)?{UNIT}(?![\w/])")
# Text that is not prose by hand: code, and parts that are written.
NO_PROSE = re.compile(r"^```.*?^```$|<!-- begin [^>]+ -->.*?<!-- end -->|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def handwritten(text):
    """The figures by hand, as (line, figure). A constant stands in code: `50` microseconds."""
    prose = NO_PROSE.sub(lambda found: "\n" * found[0].count("\n"), text)
    return [(prose.count("\n", 0, found.start()) + 1, " ".join(found[0].split())) for found in FIGURE.finditer(prose)]


def check_itself():
    for text in ("it took 3.9 us", "takes .8 to 2 us more", "1.7\ntimes as long", "5 % at most", "a 12-cycles step"):
        assert handwritten(text), text
    for text in ("1 x 40 x 40", "`50` microseconds", "<!-- begin a -->3 us<!-- end -->", "```sh\n3 us\n```",
                 "0 times infinity", "65535 pixels", "it is 3 to 5"):
        assert not handwritten(text), text


def stale(source):
    """Documents that the results would change."""
    with tempfile.TemporaryDirectory() as name:
        copy = pathlib.Path(name)
        documents = [source / "README.md", source / "bench/results/README.md", *(source / "docs").glob("*.md")]
        for document in documents:
            target = copy / document.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(document.read_bytes())
        if subprocess.run([sys.executable, source / "bench/tables/write.py", copy]).returncode != 0:
            sys.exit(1)  # It said why.
        return [document for document in [*documents, source / "docs/gain.svg"]
                if document.read_bytes() != (copy / document.relative_to(source)).read_bytes()]


def main():
    source = pathlib.Path(sys.argv[1])
    check_itself()
    faults = [f"{document} does not show bench/results: run make bench-tables" for document in stale(source)]
    for page in sorted((source / "docs").glob("*.md")):
        if page.name not in EXPERIMENTS:
            faults += [f"{page}:{line}: '{figure}' is by hand: let bench/tables write it, or say the reason without it"
                       for line, figure in handwritten(page.read_text(encoding="utf-8"))]
    lines = (source / "docs/benchmarks.md").read_text(encoding="utf-8").count("\n")
    if lines >= 200:
        faults.append(f"docs/benchmarks.md has {lines} lines; below 200 is readable")
    for fault in faults:
        print(fault, file=sys.stderr)
    return len(faults) > 0


sys.exit(main())
