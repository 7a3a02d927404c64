"""A certificate as a page of HTML, and as JSON."""

from __future__ import annotations

import html
import json
from itertools import groupby
from pathlib import Path

from lngrad.check.certify.measured import Certificate
from lngrad.errors import printable
from lngrad.files.boundary import as_format_error, parse_json, read_text
from lngrad.files.writing import write_text

LEAF, LEVEL = 6, 14  # pixels between leaves, and between a node and its parent


def write_certificate_json(path: Path, certificate: Certificate) -> None:
    text = json.dumps(certificate.to_json(), indent=1, ensure_ascii=False)
    write_text(path, text + "\n")


def read_certificate(path: Path) -> Certificate:
    """A certificate that write_certificate_json wrote.

    Raises:
        FileFormatError: The file is none.
    """
    with as_format_error(path, "expected a certificate of lngrad certify"):
        return Certificate.from_json(parse_json(read_text(path), path))


def _escape(text: str) -> str:
    return html.escape(printable(text))


def write_certificate_html(path: Path, certificate: Certificate) -> None:
    """One page: properties by group, counter-examples, and the trees drawn."""
    parts = []
    for group, members in groupby(certificate.measured, key=lambda item: item.group):
        parts.append(f"<h2>{_escape(group)}</h2><table>")
        for member in members:
            mark = "" if member.holds is None else "holds" if member.holds else "fails"
            trials = f"<small>{member.trials:,} trials</small>" if member.trials else ""
            example = f"<div class=example>{_escape(member.counterexample)}</div>" if member.counterexample else ""
            tree = (member.facts or {}).get("tree")
            drawn = f"<details><summary>the tree</summary>{_drawn(tree)}</details>" if isinstance(tree, str) else ""
            parts.append(
                f"<tr><th>{_escape(member.name)}<td class='{mark}'>{_escape(member.answer)} {trials}{example}{drawn}"
            )
        parts.append("</table>")
    head = " · ".join(_escape(array) for array in (certificate.name, certificate.version, certificate.norm) if array)
    body = "".join(parts)
    write_text(
        path,
        f"<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Certificate of {_escape(certificate.name)}</title><style>{_STYLE}</style>"
        f"<h1>Certificate of {head}</h1>"
        f"<p>Measured on {_escape(certificate.machine)}, {_escape(certificate.dtype)} unless said otherwise."
        f"{body}",
    )


_STYLE = """
:root{color-scheme:light dark}body{font:15px/1.45 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%}th{font-weight:500;text-align:left;width:32%;vertical-align:top}
th,td{padding:.35rem .6rem;border-top:1px solid #8884}small{opacity:.65}.holds::before{content:'✓ ';color:#2a8a4a}
.fails::before{content:'✗ ';color:#c33}.example{font:12px/1.5 ui-monospace,monospace;opacity:.8;overflow-wrap:anywhere}
details{overflow-x:auto}svg{display:block}path{fill:none;stroke:currentColor;opacity:.6}
"""


def _drawn(text: str) -> str:
    """A tree in brackets as a drawing: leaves below in the order of their places, sums above."""
    nodes: list[tuple[float, int]] = []  # (place, height) of what is on the stack
    marks: list[int] = []  # where each open bracket began
    number, paths = "", []
    count = 0
    for letter in text + " ":
        if letter.isdigit():
            number += letter
            continue
        if number:
            nodes.append((float(number), 0))
            count, number = max(count, int(number) + 1), ""
        if letter == "(":
            marks.append(len(nodes))
        elif letter == ")":
            parts = nodes[marks[-1] :]
            del nodes[marks.pop() :]
            height = 1 + max(level for _, level in parts)
            places = [place for place, _ in parts]
            paths.append((height, places, [level for _, level in parts]))
            nodes.append((sum(places) / len(places), height))
    most = max((height for height, _, _ in paths), default=1)
    step = min(float(LEVEL), 900 / most)
    lines = []
    for height, places, levels in paths:
        top = (most - height) * step + 4
        for place, level in zip(places, levels, strict=True):
            lines.append(f"M{place * LEAF + 4:.0f} {(most - level) * step + 4:.1f}V{top:.1f}")
        lines.append(f"M{min(places) * LEAF + 4:.0f} {top:.1f}H{max(places) * LEAF + 4:.0f}")
    width, size = count * LEAF + 8, most * step + 8
    return (
        f"<svg width={width} height={size:.0f} role=img aria-label='summation tree'><path d='{''.join(lines)}'/></svg>"
    )
