"""A known mistake in words and code: its sentence, its formula, a kernel that has it, and the kernel mended."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from difflib import get_close_matches

from lngrad.check.mistakes.catalogue import FAMILIES, MISTAKES
from lngrad.check.mistakes.changes import Family
from lngrad.check.mistakes.described import DESCRIBED, described
from lngrad.check.result import AT_A_PLACE, kind_of
from lngrad.core.norms import NORMS

# By the letter of the code.
WHY = {
    "I": "A wrong index or mask shows in some shapes alone: rows past a tile, a last column, dimensions that are not equal.",
    "S": "Wrong statistics scale or shift every row; where eps is small beside the variance, nothing shows.",
    "N": "Norms of one family differ in a term each, and a kernel is often made from another one's.",
    "X": "A wrong term leaves dx near the truth for small or centred inputs, and training goes on with it.",
    "G": "dgamma and dbeta are sums over all rows: what is lost or counted twice changes with the number of rows.",
    "F": "A forward can be wrong beside gradients that are right: training goes on with other outputs than were meant.",
    "P": "What is rounded before a sum is an error that grows with its length, and shows in long rows and many rows only.",
}
ARGUMENTS = ("dy", "x", "residual", "dtotal", "mean", "rstd", "variance", "gamma", "eps", "alpha", "lead",
             "normalized_shape")  # fmt: skip
OF_FORWARD = "x", "residual", "gate", "gamma", "beta", "eps", "alpha", "lead", "normalized_shape"
IMPORTS = {'"bfloat16"': "import ml_dtypes  # NumPy's bfloat16", "np.": "import numpy as np",
           "reduce(lambda": "from functools import reduce"}  # fmt: skip
NAMED = 3  # of a misspelt name


def nearest(name: str) -> str:
    """The known names that are spelt alike, behind ", such as"; "" where none is."""
    known = dict.fromkeys([*MISTAKES, *(family.name for family in FAMILIES), *DESCRIBED])
    found = ", ".join(get_close_matches(name, known, NAMED))
    return f", such as {found}" * bool(found)


def explained(text: str) -> str:
    """What is to be said of a mistake, by its code or name, or of several as a report joins them.

    Raises:
        ValueError: There is none of this name.
    """
    return "\n\n".join(map(_explained, text.split("; ")))


def _explained(text: str) -> str:
    name = AT_A_PLACE.sub("", text.strip())
    found = next(
        (candidate for candidate in FAMILIES if name.upper() == candidate.code or name == candidate.name), None
    )
    if found is None and name not in MISTAKES:
        alike = (known for known in MISTAKES if "…" in name and kind_of(known) == name)
        if (known := next(alike, None)) is None and (text_of_name := described(name)) is not None:
            return f"{name}\nWhat: {text_of_name}"
        if known is None:
            raise ValueError(f"expected the name or code of a known mistake{nearest(name)}, got {text!r}")
        name = known
    name, mistake = next(found.mistakes()) if found else (name, MISTAKES[name])
    family = found or mistake.family
    sentence = [f"{family.code}  {name}", f"What: {mistake.sentence}", f"Why it matters: {WHY[family.code[3]]}"]
    if family.example:
        wrong, right = kernels(family, name)
        sentence += [f"Formula: {formula(family, name)}", "", "With it:", "", wrong, "", "Mended:", "", right]
    return "\n".join(sentence)


def right_lines(norm: str) -> list[str]:
    """The backward of a norm, a line for each of its terms."""
    normalization, residual = NORMS[norm].normalization, NORMS[norm].residual
    x = "total" if residual else "x"
    means = ["dxhat.mean(1, keepdims=True)"] * normalization.centred + ["(dxhat * xhat).mean(1, keepdims=True)"]
    lines = [f"total = {'x' if normalization.alpha == 1 else 'alpha * x'} + residual"] if residual else []
    lines += [
        f"xhat = ({x} - mean) * rstd" if normalization.centred else f"xhat = {x} * rstd",
        "dxhat = dy * (1 + gamma)" if normalization.offset else "dxhat = dy * gamma",
        f"{'first, ' * normalization.centred}second = {', '.join(means)}",
        f"dx = rstd * (dxhat - {'first - ' * normalization.centred}xhat * second){' + dtotal' * residual}",
        f"dgamma{', dbeta' * normalization.has_beta} = (dy * xhat).sum(0){', dy.sum(0)' * normalization.has_beta}",
    ]
    return lines


def right_forward(norm: str) -> list[str]:
    """The forward of a norm, a line for each of its terms."""
    row, centred = NORMS[norm], NORMS[norm].normalization.centred
    x = "total" if row.residual else "x"
    return [
        *[f"total = {'x' if row.normalization.alpha == 1 else 'alpha * x'} + residual"] * row.residual,
        *[f"mean = {x}.mean(1, keepdims=True)"] * centred,
        f"variance = {f'(({x} - mean) ** 2)' if centred else f'({x}**2)'}.mean(1, keepdims=True)",
        "rstd = 1 / np.sqrt(variance + eps)", f"xhat = ({x} - mean) * rstd" if centred else f"xhat = {x} * rstd",
        *["factor = gate / (1 + np.exp(-gate))"] * row.gated,
        f"y = xhat * {'(1 + gamma)' if row.normalization.offset else 'gamma'}{' + beta' * centred}{' * factor' * row.gated}",
    ]  # fmt: skip


def kernels(family: Family, name: str) -> tuple[str, str]:
    """(with the mistake, mended): two functions in Python."""
    right = (right_forward if family.forward else right_lines)(family.norm)
    before: dict[int, list[str]] = {}  # what stands behind the right line of this number; -1: ahead of all
    replaced: set[int] = set()
    for lines, targets, read in _statements(_example(family, name)):
        places = [place for place, line in enumerate(right) if targets & _targets(line)]
        before.setdefault(max(places, default=-1), []).extend(f"{line}  # wrong" for line in lines)
        if places and _targets(right[places[-1]]) == targets and not targets & read:
            replaced.add(places[-1])
    wrong = list(before.get(-1, []))
    for place, line in enumerate(right):
        wrong += [line] * (place not in replaced) + before.get(place, [])
    text = "\n".join(wrong + right)
    known = OF_FORWARD if family.forward else ARGUMENTS
    arguments = ", ".join(name for name in known if re.search(rf"\b{name}\b", text))
    is_centred = NORMS[family.norm].normalization.has_beta
    outputs, direction = "dx, dgamma, dbeta" if is_centred else "dx, dgamma, None", "backward"
    if family.forward:
        others, direction = ("mean, " * is_centred, ", total" * NORMS[family.norm].residual), "forward"
        outputs = f"y, {others[0]}rstd{others[1]}"
    both = ("\n    ".join([f"def {direction}({arguments}):", *lines, f"return {outputs}"]) for lines in (wrong, right))
    first, second = (
        "\n".join([*(line for word, line in IMPORTS.items() if word in function), function]) for function in both
    )
    return first, second


def formula(family: Family, name: str) -> str:
    """What the wrong lines compute, and the right ones that they stand for."""
    wrong = [lines[-1] for lines, _, _ in _statements(_example(family, name))]
    targets = set().union(*map(_targets, wrong))
    right_of = right_forward if family.forward else right_lines
    right = [line for line in right_of(family.norm) if _targets(line) & targets]
    return f"{_as_formula(wrong)}; right: {_as_formula(right) or ' and '.join(sorted(targets)) + ' as given'}"


def _as_formula(lines: list[str]) -> str:
    text = "; ".join(lines)
    for code, sign in ((" * ", "·"), (" - ", " − "), ("first", "mean_dxhat"), ("second", "mean_dxhat_xhat")):
        text = re.sub(rf"\b{code}\b" if code.isalpha() else re.escape(code), sign, text)
    return text


def _example(family: Family, name: str) -> str:
    """The example with the numbers of this mistake in its fields."""
    values = next(value for value in family.values or ({},) if family.name.format(**value) == name)
    return family.example.format(**values) if values else family.example


def _statements(example: str) -> Iterator[tuple[list[str], set[str], set[str]]]:
    """(lines, what they assign of a kernel's names, what they read) of each part; helpers belong to what uses them."""
    known = {
        "total", "xhat", "dxhat", "first", "second", "dx", "dgamma", "dbeta", "y", "factor", *ARGUMENTS, *OF_FORWARD,
    }  # fmt: skip
    lines: list[str] = []
    read: set[str] = set()
    text = example.split("\n")
    for statement in ast.parse(example).body:
        lines += text[statement.lineno - 1 : statement.end_lineno]
        read |= {
            node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        if targets := _targets(ast.unparse(statement)) & known:
            yield lines, targets, read
            lines, read = [], set()


def _targets(line: str) -> set[str]:
    """The names that a line assigns, as a whole or in part."""
    found = set()
    for statement in ast.parse(line).body:
        for target in statement.targets if isinstance(statement, ast.Assign) else ():
            for node in ast.walk(target):
                whole = node.value if isinstance(node, ast.Subscript) else node
                if isinstance(whole, ast.Name) and (
                    isinstance(node, ast.Subscript) or isinstance(whole.ctx, ast.Store)
                ):
                    found.add(whole.id)
    return found
