"""HTML taken apart."""

import re
from html.parser import HTMLParser

VOID = ("meta", "link", "br", "hr", "img", "input")


class Page(HTMLParser):
    """A page taken apart: elements, text, and what fetches something."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.open, self.scripts, self.problems = [], [], [], [], []
        self.feed(text)
        self.close()
        self.problems += self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.problems.append(tag)

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        if inside == "script":
            self.scripts.append(data)
        elif inside != "style":
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    @property
    def ids(self):
        return [a["id"] for _, a in self.elements if "id" in a]


def assert_fetches_nothing(source):
    page = Page(source)
    for tag, attributes in page.elements:
        assert tag not in ("iframe", "object", "embed", "base")
        for key, value in attributes.items():
            if key.rpartition(":")[2] in ("src", "href", "srcset", "data", "poster", "action"):
                assert value.startswith(("#", "data:")), (tag, key, value)
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest|import\(", source)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg\")", source)
    [policy] = [a["content"] for _, a in page.elements if "http-equiv" in a]
    assert policy.startswith("default-src 'none';")
