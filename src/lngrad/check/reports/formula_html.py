"""Formulas and recovered weights for the report: hats, bars over means, what differs marked; weights as a strip."""

from __future__ import annotations

import re
from html import escape

from lngrad.check.mistakes.fit import RIGHT
from lngrad.check.result import Formula, Weights

_NAMES = (
    ("mean_dxhat_xhat", '<span class="mean"><i>d</i><i>x̂</i>·<i>x̂</i></span>'),
    ("mean_dxhat", '<span class="mean"><i>d</i><i>x̂</i></span>'),
    ("dxhat", "<i>d</i><i>x̂</i>"),
    ("xhat", "<i>x̂</i>"),
    ("Σ_rows", "Σ<sub>rows</sub>"),
    ("w_row", "<i>w</i><sub>row</sub>"),
    ("w_column", "<i>w</i><sub>column</sub>"),
    ("dgamma", "<i>d</i><i>γ</i>"),
    ("dbeta", "<i>d</i><i>β</i>"),
    ("dx", "<i>d</i><i>x</i>"),
    ("dy", "<i>d</i><i>y</i>"),
)
_PATTERN = re.compile("|".join(re.escape(name) for name, _ in _NAMES))
_HTML = dict(_NAMES)


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


def right_html(output: str) -> str:
    """What an output should be."""
    return f"{_named(output)} = {_typeset(RIGHT[output])}"


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
