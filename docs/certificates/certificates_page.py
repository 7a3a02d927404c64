"""Render docs/certificates.md from the certificates in this folder.

lngrad certify --impl torch --json docs/certificates/torch.json
python docs/certificates/certificates_page.py
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from lngrad.check.certify.measured import Certificate, Measured
from lngrad.check.reports.certificate import read_certificate
from peer_libraries.plots import processor_name

NAMES = ("numba_cpu", "numpy_cpu", "triton_gpu", "ascend_sim", "torch", "torch_compile", "onednn", "jax")
FOLDER = Path(__file__).parent
# Facts that the table has beside the promises, and the probes whose trees the page says, the first that a kernel has.
FACTS = (
    "error of dbeta in units of roundoff of Σdy, dy > 0, by rows",
    "subnormal dy in dbeta",
    "N = 1",
    "resident at the peak of a call of 4096×4096 float32",
)
TREES = tuple(f"dbeta of {M}×64 float32{threads}" for M in (1000, 300) for threads in (", 2 threads", ""))

HEAD = """\
# Certificates: what kernels promise, measured

`lngrad certify --impl NAME [--report page.html] [--json file.json]` measures one kernel's backward, and its forward
if it has one: same bits run after run, for any number of threads, at any address and in any batch; the order of its
sums; accuracy, special values, memory. Nothing is taken from documentation or source. `--norm rms_norm` measures another
norm of `lngrad check`. [The tutorial](tutorials/certificates.md) measures a kernel of yours in five minutes.

"""

TEXT = """\
"no: 18 of 18" means that 18 of 18 trials failed. A dash: not measured, or not applicable. The links have whole certificates:
number of trials, errors, and for each "no" the first counterexample with seed, shape, index and both bit patterns.

Batches have 1 to 257 rows of 37 to 1,000 columns. The error of dbeta is given at the largest number of rows, in units of
roundoff, with its growth: slope 0.5 is the square root of the rows.

**No certificate here was taken on a GPU or an NPU, or with more than 4 threads on 2 cores.** In Triton's interpreter the
order of a sum inside a tile is NumPy's; on a GPU the compiler chooses it. `triton_gpu` and `ascend_sim` took fewer rows.

## The order of sums

FPRev's method (arXiv 2411.00442) finds the order: a huge value and its negative are put among ones; ones that are
added between them are lost, so the result reveals which terms come before both meet. The tree's own sums are then
compared with the kernel's bits on 100 random inputs.

"""

TAIL = """\

The certificates also have the trees of dgamma and of row sums. For norms without a beta, dgamma with xhat = 1 is measured
in place of dbeta. Where XLA on a CPU adds the first two blocks of 256 rows, the result is not their sum rounded once, so
its tree is not confirmed. `docs/certificates/certificates_page.py` writes this page.
"""


def page(certificates: Sequence[Certificate]) -> str:
    """The text of docs/certificates.md."""
    whose = "".join(_entry(certificate) for certificate in certificates)
    named: dict[str, list[str]] = {}
    for certificate in certificates:
        named.setdefault(_tree(certificate), []).append(f"`{certificate.name}`")
    trees = "".join(f"- {', '.join(names)}: {tree}\n" for tree, names in named.items())
    return f"{HEAD}{_table(certificates)}\n\n{whose}\n{TEXT}{trees}{TAIL}"


def _table(certificates: Sequence[Certificate]) -> str:
    """A line a promise or fact, a column a kernel."""
    rows: dict[str, dict[str, Measured]] = {}
    for certificate in certificates:
        for fact in certificate.measured:
            rows.setdefault(fact.name, {})[certificate.name] = fact
    names = [certificate.name for certificate in certificates]
    shown: dict[str, list[str]] = {}  # what has the same answers is one line
    for name, found in rows.items():
        if name in FACTS or any(fact.holds is not None for fact in found.values()):
            cells = " | ".join(_cell(found[label]) if label in found else "–" for label in names)
            shown.setdefault(cells, []).append(name)
    head = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    return "\n".join([*head, *(f"| {'; '.join(same)} | {cells} |" for cells, same in shown.items())])


def _cell(fact: Measured) -> str:
    """The answer, as short as it can be."""
    failed = re.match(r"no, in (\d+) of (\d+)", fact.answer)
    last = re.search(r"([\d.]+ at \d+; slope .*)", fact.answer)
    if failed or last:
        return f"no: {failed[1]} of {failed[2]}" if failed else last[1] if last else ""
    short = re.split(r"[:,]", fact.answer)[0]
    return "–" if short in ("not measured", "does not apply") else short


def _tree(certificate: Certificate) -> str:
    found = {fact.name: fact.answer for fact in certificate.measured}
    name = next(name for name in TREES if name in found)
    tree, _, replay = found[name].partition(";")
    return f"{name}: {tree}; {'NOT confirmed' if 'NOT confirmed' in replay else 'confirmed'}"


def _entry(certificate: Certificate) -> str:
    name, version = certificate.name, certificate.version or "as installed"
    return f"- [`{name}`](certificates/{name}.json): {version}, on {_machine(certificate)}\n"


def _machine(certificate: Certificate) -> str:
    processor, _, cores = certificate.machine.rpartition(", ")
    return f"{processor_name(processor)}, {cores}"


def read() -> list[Certificate]:
    """The certificates of this folder."""
    paths = [FOLDER / f"{name}.json" for name in NAMES]
    return [read_certificate(path) for path in paths if path.is_file()]


def main() -> int:
    """Write the page."""
    (FOLDER.parent / "certificates.md").write_text(page(read()), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
