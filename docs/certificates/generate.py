"""Render docs/certificates.md from the certificates in this folder.

lngrad certify --impl torch --json docs/certificates/torch.json
python docs/certificates/generate.py
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from lngrad.bench.plots import processor_name
from lngrad.check.certify.measured import Certificate, Measured
from lngrad.check.reports.certificate import read_certificate

NAMES = ("numba_cpu", "numpy_cpu", "triton_gpu", "ascend_sim", "torch", "torch_compile", "onednn", "jax")
FOLDER = Path(__file__).parent

HEAD = """\
# Certificates: what kernels promise, measured

`lngrad certify --impl NAME [--report page.html] [--json file.json]` measures one kernel's backward (and forward, where it
has one) and prints what it found. Nothing here is taken from documentation or source. A promise says how many trials were
made, in brackets; where it does not hold, the JSON file has the first counter-example: seed, shape, index and both bit
patterns. "Yes" means 0 ULP. `--norm rms_norm`, or another of `lngrad check`, measures that norm; without a beta, dgamma where
xhat is 1 takes dbeta's place, and beside a residual the summand and the gradient of the total are 0.

**The order of sums** is found by FPRev's method (arXiv 2411.00442): among ones, a large number and its negative absorb all
that is added between them, so each probe tells how many terms come before both meet, and the answers give the tree. The
tree's own sums are then compared with the kernel's bits on 100 random inputs. dgamma's order is found with xhat = 1; its
replay, with rstd a power of two, also tells how dy·xhat is rounded. Where the bits differ, two numbers among zeros tell whether
the order is wrong or an addition: where XLA on a CPU adds the first two blocks of 256 rows, the result is not their sum rounded
once.

**In place** means that dx is written to dy's or x's memory, and y to x's. **Memory** is what a call takes beyond dx, dgamma
and dbeta: as the library's own allocator counts it, or as the process grows. **Refused** is said with its error; where it
is a plain ValueError, the wrapper that `lngrad check` uses refused, and not the library.

No certificate here was taken on a GPU or an NPU: `triton_gpu` ran in Triton's interpreter (`lngrad certify --impl triton_gpu
--trials 8`, two and a half minutes of a core), `ascend_sim` on the simulated NPU. Both took fewer rows, and their memory is
not measured. In the interpreter a `tl.sum` is NumPy's: which rows and columns make a tile, and how tiles are added up, is the
kernels' own; the order inside a tile is NumPy's there, and the compiler's on a GPU.

Batches are of 1 to 257 rows of 37 to 1,000 columns; neighbours are random, NaN and infinity, or zeros. Whose kernels, on
which machine:

"""


def markdown_of(certificates: Sequence[Certificate]) -> str:
    """All properties of several implementations, a column each; and what was counted."""
    rows: dict[tuple[str, str], dict[str, Measured]] = {}
    for certificate in certificates:
        for one in certificate.measured:
            rows.setdefault((one.group, one.name), {})[certificate.name] = one
    names = [certificate.name for certificate in certificates]
    groups = list(dict.fromkeys(group for group, _ in rows))  # a property that only one has goes to its group's end
    lines = []
    for group, members in groupby(
        sorted(rows.items(), key=lambda item: groups.index(item[0][0])), key=lambda item: item[0][0]
    ):
        lines += [f"### {group}", "", f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
        for (_, name), found in members:
            cells = [_cell(found[label]) if label in found else "" for label in names]
            lines.append(f"| {_plain(name)} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _cell(one: Measured) -> str:
    text = _plain(one.answer)
    return f"{text} ({one.trials})" if one.holds is not None and one.trials > 1 else text


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def main() -> int:
    """Write the page."""
    paths = [FOLDER / f"{name}.json" for name in NAMES]
    certificates = [read_certificate(path) for path in paths if path.is_file()]
    whose = "".join(f"- `{one.name}`: {one.version or 'as installed'}, on {_machine(one)}\n" for one in certificates)
    (FOLDER.parent / "certificates.md").write_text(f"{HEAD}{whose}\n{markdown_of(certificates)}", "utf-8")
    return 0


def _machine(one: Certificate) -> str:
    processor, _, cores = one.machine.rpartition(", ")
    return f"{processor_name(processor)}, {cores}"


if __name__ == "__main__":
    sys.exit(main())
