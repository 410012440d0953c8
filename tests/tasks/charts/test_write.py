"""The files of `--report`: whole, without a network, texts as text, or refused before the work."""

from __future__ import annotations

import base64
import importlib.util
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from flexinfer.errors import EnvironmentUnfit, UsageError, WriteFailed, install_hint
from flexinfer.tasks.charts import html
from flexinfer.tasks.charts.chart import Bars, Page, Table
from flexinfer.tasks.charts.html import as_html
from flexinfer.tasks.charts.png import as_png
from flexinfer.tasks.charts.write import check_report, write_report
from tests.tasks.charts.test_draw import BARS, LINES

EVIL = "<script>alert('x')</script> & \"quoted\""
PAGE = Page(
    title=f"bench {EVIL}",
    facts=[f"model {EVIL}", "second line"],
    charts=[LINES, BARS, BARS],
    tables=[Table(title=EVIL, rows=[["name", "n"], [EVIL, "1"]], words=1)],
    notes=[EVIL],
)
VOID = {"meta", "br", "img"}


class Reader(HTMLParser):
    """Reads a page strictly: every element that opens must close, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def page() -> Reader:
    return Reader(as_html(PAGE).decode())


def test_every_element_is_closed(page: Reader) -> None:
    assert not page.open
    tags = [tag for tag, _ in page.seen]
    assert [tags.count(tag) for tag in ("html", "head", "body", "title", "table", "img")] == [
        1, 1, 1, 1, 1, 3,
    ]  # fmt: skip


def test_texts_from_outside_stay_texts(page: Reader) -> None:
    assert "script" not in [tag for tag, _ in page.seen]
    assert page.words.count(EVIL) == 3
    assert f"bench {EVIL}" in page.words
    assert f"model {EVIL}" in page.words
    evil = html._picture(Bars(title=EVIL, unit='" onload="', bars=BARS.bars))
    ((tag, attributes),) = Reader(evil).seen
    assert (tag, sorted(attributes)) == ("img", ["alt", "src"])
    assert attributes["alt"] == f'{EVIL}, " onload="'


def test_the_file_needs_nothing_else(page: Reader) -> None:
    for _, attributes in page.seen:
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:").startswith("data:")
    assert not re.search(r"url\(|@import|https?:", as_html(PAGE).decode())
    policies = [a["content"] for _, a in page.seen if a.get("http-equiv")]
    assert policies
    assert "default-src 'none'" in str(policies[0])


def test_pictures_are_svg_and_say_what_they_show(page: Reader) -> None:
    pictures = [attributes for tag, attributes in page.seen if tag == "img"]
    for picture in pictures:
        data = base64.b64decode(str(picture["src"]).removeprefix("data:image/svg+xml;base64,"))
        assert ET.fromstring(data).tag == "{http://www.w3.org/2000/svg}svg"
    assert [picture["alt"] for picture in pictures] == [
        "Reward, mean", "Speed, tokens / s", "Speed, tokens / s",
    ]  # fmt: skip


def test_the_same_page_is_the_same_file() -> None:
    assert as_html(PAGE) == as_html(PAGE)


def test_a_picture_grows_with_its_charts_and_lines() -> None:
    def size(page: Page) -> tuple[int, int]:
        data = as_png(page)
        assert data.startswith(b"\x89PNG\r\n")
        return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])

    assert size(Page(title="t", facts=["f"], charts=[]))[1] > 50
    one = Page(title="t", facts=["f"], charts=[LINES])
    wide, high = size(one)
    assert size(Page(title="t", facts=["f"], charts=[LINES] * 2)) == (2 * wide, high)
    assert size(Page(title="t", facts=["f"], charts=[LINES] * 3))[1] > 1.8 * high
    assert size(Page(title="t", facts=["f" * 300], charts=[LINES]))[1] > high


@pytest.mark.parametrize("name", ["r.html", "R.HTML", "r.png"])
def test_the_ending_is_the_kind(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("old")
    write_report(str(path), PAGE)
    assert path.read_bytes()[:4] == (b"\x89PNG" if name.endswith("png") else b"<!DO")
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_picture_that_fails_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(page: Page) -> bytes:
        raise MemoryError

    path = tmp_path / "r.html"
    path.write_text("old")
    monkeypatch.setattr(html, "as_html", broken)
    with pytest.raises(MemoryError):
        write_report(str(path), PAGE)
    assert path.read_text() == "old"


def test_what_cannot_be_written_is_said_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=r"--report is 'a.pdf'; allowed: .*\.html or \.png"):
        check_report("a.pdf")
    with pytest.raises(WriteFailed, match=r"--report .*: the folder does not exist"):
        check_report(str(tmp_path / "none" / "a.png"))
    check_report(str(tmp_path / "a.png"))
    assert not list(tmp_path.iterdir())
    found: Any = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else found(name)
    )
    with pytest.raises(EnvironmentUnfit, match="--report needs matplotlib") as caught:
        check_report(str(tmp_path / "a.png"))
    assert caught.value.exit_code == 3
    assert caught.value.hint == install_hint("report")
