"""The page stands alone: own files only, no inline script, and no markup made by scripts."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import sessions.pages.assets as module
from sessions.http.message import HttpResponse
from sessions.pages.assets import Assets
from tests.support.exchange import make_call
from tools_api.errors import ApiError

FOLDER = Path(module.__file__).parent / "dashboard_assets"
OURS = sorted(FOLDER.glob("*.js"))
WRITES_MARKUP = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function"


class Page(HTMLParser):
    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline: list[str] = []
        self._open = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open = tag
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self._open in {"style", "script"} and data.strip():
            self.inline.append(data)


def page() -> Page:
    return Page(Assets().page().body.decode())


def policy(response: HttpResponse) -> dict[str, str]:
    text = dict(response.headers)["Content-Security-Policy"]
    return dict(rule.strip().split(" ", 1) for rule in text.split(";"))


def test_the_policy_allows_own_files_and_nothing_else() -> None:
    rules = policy(Assets().page())
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in str(rules)


def test_the_page_loads_its_own_files_only_and_has_nothing_inline() -> None:
    parsed, names = page(), Assets().names
    assert not parsed.inline
    for tag, attributes in parsed.tags:
        assert "style" not in attributes, "the policy blocks inline styles"
        assert not any(name.startswith("on") for name in attributes), tag
        for address in (attributes.get("src"), attributes.get("href")):
            if address is not None and not address.startswith(("data:", "#", "/sessions.json")):
                assert address.removeprefix("/dashboard/assets/") in names


def test_every_module_that_a_script_imports_is_served() -> None:
    for path in OURS:
        for name in re.findall(r'from "\./([\w.]+)"', path.read_text()):
            assert name in Assets().names, f"{path.name} imports {name}"


def test_no_style_and_no_script_of_ours_reaches_elsewhere_or_writes_markup() -> None:
    for path in OURS:
        source = path.read_text()
        assert not re.search(WRITES_MARKUP, source), path.name
        addresses = set(re.findall(r"https?://[^\s\"'`]+", source))
        assert addresses <= {"http://www.w3.org/2000/svg"}, path.name
        assert "style=" not in source
    for path in FOLDER.rglob("*.css"):
        assert not re.search(r"url\(|@import", path.read_text()), path.name


def test_every_element_that_the_page_looks_up_is_in_the_document() -> None:
    ids = {attributes.get("id") for _, attributes in page().tags}
    source = (FOLDER / "dashboard.js").read_text()
    assert set(re.findall(r'byId\("([\w-]+)"\)', source)) <= ids


def test_the_chart_library_has_its_version_and_licence_beside_it() -> None:
    (folder,) = FOLDER.glob("uplot-*")
    version = folder.name.removeprefix("uplot-")
    assert f"(v{version})" in (folder / "uPlot.js").read_text()[:500]
    assert "MIT License" in (folder / "LICENSE").read_text()


def test_assets_have_types_and_what_is_none_is_not_found() -> None:
    assets = Assets()
    assert assets.show(make_call("dashboard.js")).content_type.startswith("text/javascript")
    assert assets.show(make_call("uPlot.css")).content_type.startswith("text/css")
    for name in ("LICENSE", "../assets.py", "%2e%2e", "", "dashboard"):
        with pytest.raises(ApiError) as caught:
            assets.show(make_call(name))
        assert caught.value.status == 404


def test_nothing_moves_for_ever() -> None:
    """A page that stands open draws when something is new: frames beyond that are a core's work,
    which the engine of the same machine would do without."""
    rules = "".join(path.read_text() for path in FOLDER.glob("*.css"))
    assert "infinite" not in rules
    assert "transition: width" not in rules
