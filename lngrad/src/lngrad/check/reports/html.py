"""The report as one HTML file: nothing is loaded from elsewhere, everything that came from a file is escaped."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from lngrad.check.case import Options
from lngrad.check.reports.journal import VerdictChange
from lngrad.check.result import CaseResult, Formula, OutputResult, Weights, kind_of, tally
from lngrad.check.standards import HISTOGRAM, meaning
from lngrad.errors import printable
from lngrad.files.writing import write_text

MAX_DETAILED = 300  # failed cases with pictures; the table has all
HEAT_LEVELS = 6


def write_report(
    path: Path, results: Sequence[CaseResult], options: Options, seconds: float, changed: Sequence[VerdictChange] = ()
) -> None:
    """Write the report, whole or not at all.

    Args:
        path: Of the file.
        results, options, seconds: Of the run.
        changed: What is not as in an earlier run.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("lngrad.check.reports"), autoescape=True,
        finalize=lambda value: printable(value) if type(value) is str else value, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"figure": figure, "percent": _percent}
    counts = Counter(result.status for result in results)
    failed = [result for result in results if result.status == "failed"]
    text = environment.get_template("report.html.j2").render(
        results=sorted(results, key=lambda result: ("failed", "passed", "skipped").index(result.status)),
        failed=failed[:MAX_DETAILED],
        left_out=len(failed) - min(len(failed), MAX_DETAILED),
        counts={status: counts.get(status, 0) for status in ("passed", "failed", "skipped")},
        mistakes=tally(failed),
        sentences={
            name: result.sentence
            for result in failed
            if result.mistake
            for name in (kind_of(result.mistake), result.mistake)
        },
        options=options,
        meaning=meaning(options.standard),
        seconds=seconds,
        heat=_heat,
        bars=_bars,
        worst=lambda result: max((output.worst_share for output in result.outputs), default=0.0),
        ulp=lambda result: max((output.worst_ulp for output in result.outputs), default=0.0),
        anchor={id(result): f"case-{number}" for number, result in enumerate(failed)},
        id=id,
        changed=changed,
        formula=lambda item: Markup(formula_html(item)),
        right=lambda item: Markup(f"{_named(item.output)} = {_typeset(item.right)}"),
        strip=lambda item: Markup(strip(item)),
    )
    write_text(path, text)


def figure(value: float) -> str:
    """A number as people read it: three digits, no exponent where none is needed."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def _percent(value: float) -> str:
    if value in (0, 1):
        return f"{value:.0%}"
    return "< 0.01 %" if value < 1e-4 else f"{value * 100:.3g} %"


def _level(share: float) -> int:
    """0 where the tolerance holds; 1 up to 4 times, 2 up to 16 times, …"""
    if not share > 1:
        return 0
    return HEAT_LEVELS - 1 if math.isinf(share) else min(HEAT_LEVELS - 1, 1 + int(math.log(share, 4)))


def _heat(output: OutputResult) -> dict[str, Any]:
    """The error map as one SVG path a level, runs of equal cells joined."""
    paths = [""] * HEAT_LEVELS
    for y, row in enumerate(output.map):
        x = 0
        for level, cells in groupby(map(_level, row)):
            number = len(list(cells))
            paths[level] += f"M{x} {y}h{number}v1h-{number}z"
            x += number
    return {
        "width": len(output.map[0]), "height": len(output.map), "paths": list(enumerate(paths))[1:],
        "full": output.name == "dx",
    }  # fmt: skip


_LABELS = ("0", "½", "1", "2", "4", "8", "16", "64", "256", "4k", "64k", "∞")


def _bars(output: OutputResult) -> Iterator[dict[str, Any]]:
    """The histogram over ULP, with heights on a logarithmic scale so that one wrong element in a million is seen."""
    most = math.log1p(max(output.histogram, default=0)) or 1.0
    for label, number, edge in zip(_LABELS, output.histogram, HISTOGRAM, strict=True):
        level = 0 if edge <= 1 else 2 if edge <= 16 else 4
        yield {"label": label, "number": number, "height": math.log1p(number) / most, "level": level}


_HTML = {
    "mean_dxhat_xhat": '<span class="mean"><i>d</i><i>x̂</i>·<i>x̂</i></span>',
    "mean_dxhat": '<span class="mean"><i>d</i><i>x̂</i></span>',
    "dxhat": "<i>d</i><i>x̂</i>", "xhat": "<i>x̂</i>", "Σ_rows": "Σ<sub>rows</sub>", "w_row": "<i>w</i><sub>row</sub>",
    "w_column": "<i>w</i><sub>column</sub>",
    **{f"d{name}": f"<i>d</i><i>{letter}</i>" for name, letter in (("gamma", "γ"), ("beta", "β"), ("x", "x"), ("y", "y"))},
}  # fmt: skip
_PATTERN = re.compile("|".join(map(re.escape, _HTML)))


def _typeset(text: str) -> str:
    """A part of a formula, escaped, with its names set as in a book; mean(…) becomes a bar over what is in it."""
    found, rest = "", escape(text)
    while "mean(" in rest:
        before, _, after = rest.partition("mean(")
        end = _closing(after)
        found += _named(before) + f'<span class="mean">{_named(after[:end])}</span>'
        rest = after[end + 1 :]
    return found + _named(rest)


def _closing(text: str) -> int:
    """Where the bracket closes that was open before the text."""
    depth = 1
    for place, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if not depth:
            return place
    return len(text)


def _named(text: str) -> str:
    return _PATTERN.sub(lambda match: _HTML[match[0]], text)


def formula_html(formula: Formula) -> str:
    """What an output obeys; what differs from the right formula is marked."""
    parts = "".join(f"<mark>{_typeset(text)}</mark>" if changed else _typeset(text) for text, changed in formula.parts)
    return f"{_named(formula.output)} = {parts}"


def strip(weights: Weights) -> str:
    """Weights as a strip of SVG, a run of equal ones a rectangle: missing, once, more often."""
    total = sum(number for _, number, _ in weights.runs) or 1
    parts = []
    for first, number, weight in weights.runs:
        level = "w0" if weight == 0 else "w1" if weight == 1 else "w2"
        title = f"{weights.of}s {first} to {first + number - 1}: {weight:g} times"
        parts.append(
            f'<rect class="{level}" x="{1000 * first / total:.3f}" width="{1000 * number / total:.3f}" height="18">'
            f"<title>{escape(title)}</title></rect>"
        )
    label = escape(f"{weights.sum}: {weights.text}")
    frame = 'class="strip" viewBox="0 0 1000 18" preserveAspectRatio="none" role="img"'
    return f'<svg {frame} aria-label="{label}">{"".join(parts)}</svg>'
