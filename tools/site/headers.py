"""The C++ API as pages of the site: one for each header in include/robocache, from its comments and declarations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

TYPE = re.compile(r"(?:struct|class|enum class|union)\s+(?:alignas\(.*?\)\s*)?(\w+)")
ALIAS = re.compile(r"using\s+(\w+)\s*=")
FUNCTION = re.compile(r"([\w~]+|operator\S+)\s*\(")
VARIABLE = re.compile(r"(\w+)\s*(?:=|;|\{)")


def purpose(text: str) -> str:
    """The comment at the top of a header."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("//"):
            break
        lines.append(line.removeprefix("//").strip())
    return " ".join(lines)


def declarations(text: str) -> Iterator[str]:
    """The declarations in namespace robocache with their comments, as they are written."""
    body = text[text.index("namespace robocache {") :].split("\n", 1)[1]
    body = body[: body.rindex("}  // namespace robocache")]
    lines: list[str] = []
    depth, complete = 0, True
    for line in body.splitlines():
        code = line.split("//")[0]
        if complete and (not line.strip() or (line.startswith("///") and not is_comment(lines))):
            if lines:
                yield "\n".join(lines)
            lines = []
            if not line.strip():
                continue
        if line.startswith("#"):
            continue
        lines.append(line)
        depth += code.count("{") + code.count("(") - code.count("}") - code.count(")")
        complete = depth == 0 and (not code.strip() or code.rstrip().endswith((";", "}")))
    if lines:
        yield "\n".join(lines)


def is_comment(lines: list[str]) -> bool:
    return all(line.startswith("//") for line in lines)


def without_private(code: str) -> str:
    """The code of a class up to its private members."""
    return re.sub(r"\n+private:\n.*?(?=\n\};)", "", code, flags=re.DOTALL)


def statements(code: str) -> Iterator[str]:
    """The declarations of a part without comments, each complete."""
    lines: list[str] = []
    depth = 0
    for line in code.splitlines():
        bare = line.split("//")[0].rstrip()
        lines.append(bare)
        depth += bare.count("{") + bare.count("(") - bare.count("}") - bare.count(")")
        if depth == 0 and bare.endswith((";", "}")):
            yield "\n".join(lines).strip()
            lines = []


def names_of(code: str) -> list[str]:
    """What a declaration, or several under one comment, declare."""
    found: list[str] = []
    for statement in statements(code):
        bare = re.sub(r"\[\[.*?\]\]\s*|template\s*<.*?>\s*(?=\n|\w)|requires .*", "", statement).strip()
        named = TYPE.match(bare) or ALIAS.match(bare) or FUNCTION.search(bare) or VARIABLE.search(bare)
        if named and named[1] not in found:
            found.append(named[1])
    return found


def without_comment(lines: list[str]) -> list[str]:
    """The first declaration of a part without comment, and types that follow another declaration without one.

    Functions may share the comment of the first. A class that is only named, defined elsewhere, needs none.
    """
    code = "\n".join(line for line in lines if not line.startswith("//"))
    found = []
    for i, statement in enumerate(statements(code)):
        is_type = TYPE.match(statement) and "{" in statement
        is_name = TYPE.match(statement) and not is_type
        if (i == 0 and not lines[0].startswith("///") and not is_name) or (i > 0 and is_type):
            found += names_of(statement)
    return found


def page(header: Path) -> str:
    """The page of one header. Raises ValueError for a declaration without comment, or whose name is not found."""
    text = header.read_text()
    pieces = [f"# {header.name}", purpose(text), f"`#include <robocache/{header.name}>`"]
    if "namespace robocache {" not in text:
        return "\n\n".join([*pieces, "```cpp\n" + text[text.index("#include") :] + "```"]) + "\n"
    for item in declarations(text):
        lines = item.splitlines()
        comment = [line.removeprefix("///") for line in lines if line.startswith("///")]
        code = "\n".join(line for line in lines if not line.startswith("//"))
        if not code.strip():
            continue  # a line that divides the file
        names = names_of(code)
        if not names:
            raise ValueError(f"{header}: no name found in {code!r}")
        if bare := without_comment(lines):
            raise ValueError(f"{header}: needs a comment (///): {', '.join(bare)}")
        pieces += ["## " + ", ".join(f"`{name}`" for name in names), prose(comment)]
        pieces.append(f"```cpp\n{without_private(code)}\n```")
    return "\n\n".join(piece for piece in pieces if piece) + "\n"


def prose(comment: list[str]) -> str:
    """A comment as Markdown: what is indented by more than one space is a listing."""
    written: list[str] = []
    for line in comment:
        is_listing = line.startswith("  ")
        if written and is_listing != written[-1].startswith("    "):
            written.append("")
        written.append("    " + line.strip(" ") if is_listing else line.strip())
    return "\n".join(written)
