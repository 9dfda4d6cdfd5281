"""What MkDocs calls: adds the pages that are not files in docs/, and makes links between files links between pages.

A link to a page of docs/ or to README.md, ARCHITECTURE.md, ... leads to that page of the site; one to a header to the
page of its declarations; one to another file of the repository to a page that shows the file. Anything else stays as it
is, and MkDocs reports it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import headers
import python_api
from github_markdown import for_python_markdown, with_links
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
AT_ROOT = {
    "README.md": "index.md",
    **{f"{name}.md": f"{name.lower()}.md" for name in ("ARCHITECTURE", "CONTRIBUTING", "CHANGELOG")},
    "THIRD_PARTY_NOTICES.md": "third_party_notices.md",
    **{f".github/{name}.md": f"{name.lower()}.md" for name in ("SECURITY", "CODE_OF_CONDUCT")},
}
INDEXES = {"docs/decisions": "decisions/index.md", "include/robocache": "api/cpp/index.md"}
LANGUAGES = {
    ".py": "python",
    ".cpp": "cpp",
    ".hpp": "cpp",
    ".txt": "text",
    ".sh": "bash",
    ".json": "json",
    ".yml": "yaml",
}
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
written_from: dict[str, str] = {}
"""The repository's file that a page was made from, by the page's path."""


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        return listed.stdout.split()
    return [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]  # a source distribution


def page_of(path: str) -> str | None:
    """The page of a file or folder of the repository; None if there is no such file."""
    if path in AT_ROOT:
        return AT_ROOT[path]
    if path in INDEXES:
        return INDEXES[path]
    if path.startswith("docs/") and (ROOT / path).is_file():
        return path.removeprefix("docs/")
    if path.startswith("include/robocache/"):
        return f"api/cpp/{Path(path).stem}.md"
    if (ROOT / path / "README.md").is_file():
        path += "/README.md"
    if (ROOT / path).exists():
        return f"source/{path}" if path.endswith(".md") else f"source/{path}.md"
    return None


def target_on_site(target: str, file: str, page: str) -> str:
    """The target of a link in `file`, for the page that it becomes."""
    if re.match(r"[a-z]+:", target) or target.startswith("#"):
        return target
    path, _, anchor = target.partition("#")
    found = page_of(os.path.normpath(os.path.join(os.path.dirname(file), path)))
    if found is None:
        return target
    return os.path.relpath(found, os.path.dirname(page) or ".") + ("#" + anchor if anchor else "")


def text_of_page(text: str, file: str, page: str) -> str:
    return for_python_markdown(with_links(text, lambda target: target_on_site(target, file, page)))


def shown(path: str) -> str:
    """A page that shows a file, or what a folder has."""
    where = ROOT / path
    if where.is_dir():
        inside = sorted(name for name in tracked() if name.startswith(path + "/"))
        return f"# {path}\n\n" + "\n".join(f"- [{name}]({os.path.relpath(name, path)})" for name in inside) + "\n"
    if path.endswith(".md"):
        return where.read_text()
    if path.endswith(".ipynb"):
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(where.read_text())["cells"]]
        parts = [
            f"```python\n{text}\n```" if kind == "code" else re.sub("(?m)^# ", "## ", text) for kind, text in cells
        ]
        return "\n\n".join([f"# {path}", *parts]) + "\n"
    return f"# {path}\n\n````{LANGUAGES.get(where.suffix, 'text')}\n{where.read_text().rstrip()}\n````\n"


def pages_of_files(files: dict[str, str]) -> dict[str, str]:
    """{page: file} of the files that pages link to and that are no pages themselves."""
    found: dict[str, str] = {}
    waiting = list(files.items())
    while waiting:
        file, text = waiting.pop()

        def visit(target: str, file: str = file) -> str:
            if target.startswith("#") or re.match(r"[a-z]+:", target):
                return target
            page = page_of(os.path.normpath(os.path.join(os.path.dirname(file), target.partition("#")[0])))
            if page and page.startswith("source/") and page not in found:
                source = page.removeprefix("source/")
                source = source if (ROOT / source).exists() else source.removesuffix(".md")
                found[page] = source
                waiting.append((source + "/." if (ROOT / source).is_dir() else source, shown(source)))
            return target

        with_links(text, visit)
    return found


def gallery(texts: dict[str, str]) -> str:
    """Every picture of docs/pictures, with the caption it has on the first page that shows it."""
    pieces = ["# Gallery", "Every picture is drawn by `make docs` from the package and from committed results."]
    for picture in sorted((ROOT / "docs/pictures").glob("*.png")):
        users = [
            (page, alt)
            for page, text in sorted(texts.items(), key=lambda item: item[0] == "README.md")
            for alt, target in IMAGE.findall(text)
            if target.endswith(f"pictures/{picture.name}")
        ]
        if not users:
            raise ValueError(f"docs/pictures/{picture.name}: no page shows this picture")
        page, alt = users[0]
        pieces += [f"## {alt}", f"![{alt}](pictures/{picture.name})", f"From [{page}]({page_of(page)})."]
    return "\n\n".join(pieces) + "\n"


def heading(text: str) -> str:
    return next(line.removeprefix("# ") for line in text.splitlines() if line.startswith("# "))


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    python = config.plugins["mkdocstrings"].config.handlers["python"]["options"]
    python["extensions"] = [str(HERE / "python_api.py")]
    decisions = [f"decisions/{path.name}" for path in sorted((ROOT / "docs/decisions").glob("*.md"))]
    cpp = [f"api/cpp/{path.stem}.md" for path in sorted((ROOT / "include/robocache").glob("*.hpp"))]
    generated = {
        "api/": [{"Python": [f"api/{part}.md" for part in python_api.TITLES]}, {"C++": ["api/cpp/index.md", *cpp]}],
        "decisions/": ["decisions/index.md", *decisions],
    }

    def filled(entry: Any) -> Any:
        if isinstance(entry, list):
            return [filled(item) for item in entry]
        if isinstance(entry, dict):
            return {title: filled(item) for title, item in entry.items()}
        return generated.get(entry, entry)

    config.nav = filled(config.nav)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    texts = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    texts |= {file: (ROOT / file).read_text() for file in AT_ROOT if (ROOT / file).exists()}

    def add(page: str, text: str | bytes, **options: Any) -> None:
        files.append(File.generated(config, page, content=text, **options))

    for file in AT_ROOT:
        if file in texts:
            written_from[AT_ROOT[file]] = file
            add(AT_ROOT[file], texts[file])
    for name, text in python_api.pages(ROOT / "python/robocache").items():
        add(f"api/{name}", text)
    listing = ["# C++", "The headers in `include/robocache`. `robocache.hpp` includes all of them."]
    for header in sorted((ROOT / "include/robocache").glob("*.hpp")):
        add(f"api/cpp/{header.stem}.md", headers.page(header))
        listing.append(f"- [{header.name}]({header.stem}.md): {headers.purpose(header.read_text())}")
    add("api/cpp/index.md", "\n\n".join(listing[:2]) + "\n\n" + "\n".join(listing[2:]) + "\n")
    decisions = [path for path in sorted(texts) if path.startswith("docs/decisions/")]
    listed = "\n".join(f"- [{heading(texts[path])}]({Path(path).name})" for path in decisions)
    add("decisions/index.md", f"# Decisions\n\nWhat is costly to undo, and why it was decided.\n\n{listed}\n")
    add("gallery.md", gallery(texts))
    for page, file in pages_of_files(texts).items():
        written_from[page] = file if (ROOT / file).is_file() else file + "/."
        add(page, shown(file), inclusion=InclusionLevel.NOT_IN_NAV)
    add("assets/iframe-worker.js", (HERE / "iframe-worker.js").read_text())
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    src = page.file.src_uri
    if page.file.generated_by and src not in written_from:
        return markdown
    return text_of_page(markdown, written_from.get(src, f"docs/{src}"), src)
