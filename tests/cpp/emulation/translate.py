"""Translates CUDA C++ into C++ for the emulated GPU: python translate.py <src> <out>

Copies every .cu file, and every .cuh and .hpp file of <src> that has what C++ lacks, with three replacements; the other
files are used as they are. Files in <out> that would stay the same are not written: a second build compiles the rest.

    extern __shared__ T name[];     T* const name = ...dynamic_shared...
    kernel<<<grid, block, bytes, stream>>>(call);     a call of launch_on with a lambda
    asm volatile("ld.x.y %0, [%1];" : "=r"(a) : "r"(b));     ptx::ld_x_y(a, b);
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SHARED = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?([\w:]+) (\w+)\[\];")
LAUNCH = re.compile(r"([\w:]+(?:<[\w:, ]+>)?)\s*<<<(.*?)>>>\s*\((.*?)\);", re.DOTALL)
ASM = re.compile(r"\basm\s*(?:volatile)?\s*\(")
OPERAND = re.compile(r'"[=+]?\w"\s*\(')


def end_of_parentheses(text: str, begin: int) -> int:
    """The position after the parenthesis that closes the one before `begin`; skips strings."""
    depth, i = 1, begin
    while depth:
        if text[i] == '"':
            i = text.index('"', i + 1)
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        i += 1
    return i


def sections(text: str) -> list[str]:
    """The parts of an asm statement: template, outputs, inputs, clobbers."""
    parts, begin, i, depth = [], 0, 0, 0
    while i < len(text):
        if text[i] == '"':
            i = text.index('"', i + 1)
        elif text[i] in "()":
            depth += 1 if text[i] == "(" else -1
        elif text[i] == ":" and depth == 0:
            parts.append(text[begin:i])
            begin = i + 1
        i += 1
    return [*parts, text[begin:]]


def operands(text: str) -> list[str]:
    found, i = [], 0
    while match := OPERAND.search(text, i):
        i = end_of_parentheses(text, match.end())
        found.append(text[match.end() : i - 1])
    return found


def without_asm(text: str) -> str:
    while match := ASM.search(text):
        end = end_of_parentheses(text, match.end())
        parts = sections(text[match.end() : end - 1])
        template = "".join(re.findall(r'"([^"]*)"', parts[0]))
        name = max(re.findall(r"[a-z][\w.:]*", template), key=len).strip(":.")
        values = [value for part in parts[1:3] for value in operands(part)]
        call = f"emulation::ptx::{re.sub(r'[.:]+', '_', name)}({', '.join(values)})"
        text = text[: match.start()] + call + text[end:]
    return text


def translated(text: str) -> str:
    text = text.replace("__noinline__", "__attribute__((noinline))")  # as a macro it would break <memory>
    text = SHARED.sub(r"auto* const \2 = static_cast<\1*>(emulation::dynamic_shared());", text)
    text = LAUNCH.sub(r"emulation::launch_on(\2, [=] { \1(\3); });", text)
    return without_asm(text)


def main() -> None:
    src, out = Path(sys.argv[1]), Path(sys.argv[2])
    for path in sorted(src.rglob("*.[ch]*")):
        text = path.read_text()
        target = out / path.relative_to(src)
        if path.suffix == ".cu":
            target = target.with_name(f"{path.name}.cpp")
            text = f'#line 1 "{path}"\n{translated(text)}'
        elif path.suffix in (".cuh", ".hpp"):
            new = translated(text)
            if new == text:
                continue
            text = new
        else:
            continue
        if not target.exists() or target.read_text() != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)


if __name__ == "__main__":
    main()
