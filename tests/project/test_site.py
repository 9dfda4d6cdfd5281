"""The site: builds strict, shows what GitHub shows, and works when its pages are opened from disk."""

import collections
import html.parser
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import robocache
from paths import ROOT

pytest.importorskip("material")
sys.path.insert(0, str(ROOT / "tools/site"))
COUNTED = {"ul", "ol", "li", "table", "tr", "td", "pre", "h1", "h2", "h3", "h4", "img", "strong", "em"}
PARTS = ("docs", "include", "python/robocache", "tools/site", "examples", ".github")


def build(root, out):
    """The command of ``make site``, for the tree in ``root``."""
    dry = subprocess.run(["make", "-n", "site", "VENV="], cwd=ROOT, check=True, capture_output=True, text=True)
    (line,) = [line for line in dry.stdout.splitlines() if "mkdocs build" in line]
    words = shlex.split(line)
    command = [sys.executable, *words[words.index("-m") :], "--site-dir", str(out)]
    return subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=250, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site") / "site"
    done = build(ROOT, out)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture
def tree(tmp_path):
    """A copy of what the site is made from."""
    for part in (*PARTS, *(path.name for path in ROOT.glob("*.md"))):
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / part, tmp_path / part)
    return tmp_path


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("[text](no_such_page.md)", "no_such_page.md"),
        ("[text](../tools/no_such_file.py)", "no_such_file.py"),
        ("[text](voxelize.md#no-such-heading)", "no-such-heading"),
        ("[name][robocache.no_such_name]", "robocache.no_such_name"),
        ("::: robocache.no_such_name", "robocache.no_such_name"),
    ],
)
def test_a_dead_link_or_a_missing_reference_fails_the_build(tree, tmp_path, fault, message):
    page = tree / "docs/align.md"
    page.write_text(page.read_text() + f"\n{fault}\n")
    done = build(tree, tmp_path / "site")
    assert done.returncode != 0
    assert message in done.stdout + done.stderr


def test_a_page_that_the_navigation_lacks_fails_the_build(tree, tmp_path):
    (tree / "docs/guides/forgotten.md").write_text("# Forgotten\n")
    done = build(tree, tmp_path / "site")
    assert done.returncode != 0
    assert "forgotten.md" in done.stdout + done.stderr


def test_no_page_loads_anything_from_another_host(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        loaded = re.findall(
            r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"?((?:https?:)?//[^\"> ]+)", page.read_text()
        )
        assert loaded == [], page


def test_every_public_name_has_an_entry_in_the_api(site):
    entries = {
        name for page in (site / "api").glob("*.html") for name in re.findall(r'id="([\w.]+)"', page.read_text())
    }
    names = {f"robocache.{name}" for name in robocache.__all__} - {"robocache.__version__"}
    for module in ("lerobot", "datasets.diffusion_policy", "datasets.robomimic"):
        names |= {f"robocache.{module}.{name}" for name in importlib.import_module(f"robocache.{module}").__all__}
    assert "robocache.lerobot.FrameTimestampError" in names
    assert names - entries == set()


def test_a_folder_without_a_page_or_a_module_without_a_list_of_names_is_found(tmp_path):
    import python_api

    package = tmp_path / "robocache"
    shutil.copytree(ROOT / "python/robocache", package)
    (package / "datasets/another.py").write_text("class Another: ...\n")
    with pytest.raises(ValueError, match=r"another\.py: must have __all__"):
        python_api.pages(package)
    (package / "datasets/another.py").unlink()
    (package / "newer").mkdir()
    (package / "newer/__init__.py").write_text("__all__ = ['name']\n")
    with pytest.raises(ValueError, match=r"TITLES must name .*'newer'"):
        python_api.pages(package)


@pytest.mark.parametrize(
    ("declarations", "named"),
    [
        ("struct Bare {\n    int x;  ///< not of the struct\n};", "Bare"),
        ("/// First.\nenum class First { a };\nenum class Second { b };", "Second"),
        ("int function(int x);", "function"),
        ("class Elsewhere;\n\n/// Both.\nint first(int x);\nint second(int x);", None),
    ],
)
def test_a_declaration_without_a_comment_fails_the_build(declarations, named, tmp_path):
    import headers

    header = tmp_path / "x.hpp"
    header.write_text(
        f"// A header.\n#pragma once\n\nnamespace robocache {{\n\n{declarations}\n\n}}  // namespace robocache\n"
    )
    if named is None:
        assert "`second`" in headers.page(header)
    else:
        with pytest.raises(ValueError, match=rf"needs a comment \(///\): {named}$"):
            headers.page(header)


def test_every_type_and_function_of_the_headers_has_an_entry(site):
    for header in (ROOT / "include/robocache").glob("*.hpp"):
        text = header.read_text()
        names = set(re.findall(r"^(?:struct|class|enum class) (\w+)[^;\n]*\{", text, re.MULTILINE))
        names |= set(re.findall(r"^(?:\[\[nodiscard\]\] )?\w[\w:<>*& ]*? [&*]?(\w+)\(", text, re.MULTILINE))
        page = (site / "api/cpp" / f"{header.stem}.html").read_text()
        shown = re.findall(r"<h2[^>]*>(.*?)</h2>", page, re.DOTALL)
        found = {name for heading in shown for name in re.findall(r"<code>(\w+)</code>", heading)}
        assert names - found == set(), header


def test_the_gallery_shows_every_picture(site):
    page = (site / "gallery.html").read_text()
    for picture in (ROOT / "docs/pictures").glob("*.png"):
        assert f'src="pictures/{picture.name}"' in page
        assert (site / "pictures" / picture.name).exists()


class Elements(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.counts = collections.Counter()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.counts.update({tag} & COUNTED)


@pytest.mark.parametrize("path", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]), ids=lambda path: path.name)
def test_lists_tables_and_listings_are_those_that_github_shows(path):
    markdown = pytest.importorskip("markdown")
    github = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table")
    from github_markdown import for_python_markdown

    text = path.read_text()
    extensions = ["tables", "sane_lists", "attr_list", "pymdownx.superfences", "pymdownx.highlight"]
    settings = {"pymdownx.highlight": {"use_pygments": False}}
    shown = markdown.markdown(for_python_markdown(text), extensions=extensions, extension_configs=settings)
    assert Elements(shown).counts == Elements(github.render(text)).counts


def test_without_its_preparation_a_list_after_a_paragraph_would_be_lost():
    markdown = pytest.importorskip("markdown")
    from github_markdown import for_python_markdown

    text = "Rules:\n- one\n  - nested\n- two\n"
    assert Elements(markdown.markdown(text)).counts["li"] == 0
    assert Elements(markdown.markdown(for_python_markdown(text))).counts == {"ul": 2, "li": 3}


def test_the_search_finds_pages_when_the_site_is_opened_from_disk(site, tmp_path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs chromium")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    command += ["--virtual-time-budget=20000", f"{(site / 'index.html').as_uri()}?q=slerp_xyzw"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    found = re.findall(r'<a href="([^"]+)"[^>]*class="md-search-result__link"', done.stdout)
    assert any("align.html" in link for link in found), done.stderr[-2000:]
