"""Write docs/mistakes.md from the catalogue of `lngrad check`: each family with its code, names, sentence and example."""

from __future__ import annotations

from lngrad.check.mistakes.catalogue import FAMILIES, MISTAKES
from lngrad.check.mistakes.changes import Family
from lngrad.check.mistakes.explain import WHY

LETTERS = {
    "F": "Forwards",
    "G": "Sums over rows",
    "I": "Indices and masks",
    "N": "Another norm of the family",
    "P": "Precision",
    "S": "Statistics",
    "X": "Terms of dx and xhat",
}
HEAD = f"""\
# Known mistakes

`lngrad check` knows {len(FAMILIES)} families of mistakes, {len(MISTAKES)} mistakes in all. Each family is listed by its code,
with the lines of a kernel that has the mistake. `lngrad check --explain LN-X02` prints the whole kernel, and the kernel mended.
A code is never used for another family. `python docs/generate.py` writes this page.
"""


def page() -> str:
    """The text of docs/mistakes.md."""
    parts = [HEAD]
    for letter, title in LETTERS.items():
        parts.append(f"## {title}\n\n{WHY[letter]}\n")
        parts += [entry(family) for family in sorted(of_letter(letter), key=lambda family: family.code)]
    return "\n".join(parts)


def of_letter(letter: str) -> list[Family]:
    return [family for family in FAMILIES if family.code[3] == letter]


def entry(family: Family) -> str:
    """A heading, the sentence and the lines of the family's first mistake, and the names of the others."""
    (name, mistake), *others = family.mistakes()
    values = next(iter(family.values or ({},)))
    lines = [f"### {family.code} {name}", "", mistake.sentence, ""]
    if family.example:
        lines += ["```text", family.example.format(**values) if values else family.example, "```", ""]
    if others:
        lines += [f"Also: {'; '.join(name for name, _ in others)}.", ""]
    return "\n".join(lines)
