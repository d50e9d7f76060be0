"""Reads pages of distile.explain for the tests."""

import base64
import html.parser

VOID = {"meta", "br", "img"}


class Page(html.parser.HTMLParser):
    """Checks that tags are closed in their order and that nothing is loaded, and keeps the texts by tag."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.images: list[bytes] = []
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()
        assert not self.open and text.startswith("<!DOCTYPE html>")

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        assert tag not in ("script", "link", "iframe") and "href" not in found
        assert not any(name.startswith("on") for name in found)
        if tag == "img":
            kind, _, data = found["src"].partition(",")
            assert kind == "data:image/png;base64" and found["alt"]
            self.images.append(base64.b64decode(data, validate=True))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)
            if "td" in self.open or "th" in self.open:
                self.rows[-1][-1] += data
