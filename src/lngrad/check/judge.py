"""One case from its inputs to its result: whether it is run at all, and what stands in the result of one that is not."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

from lngrad.check.calls.kernel import KernelError, first_line, here
from lngrad.check.case import OUTPUTS, CheckCase, Options
from lngrad.check.formats.fuzz import FUZZ
from lngrad.check.implementations import NotApplicable
from lngrad.check.result import CaseResult
from lngrad.check.standards.rules import AUTO, STANDARDS, usual
from lngrad.check.trial import Kernels, Trial
from lngrad.errors import BackendUnavailable, FileFormatError

__all__ = ["Options", "case_facts", "check_case", "command_of"]


def case_facts(case: CheckCase) -> str:
    """A case in one line, for people."""
    lead, normalized = ("×".join(map(str, sizes)) or "1" for sizes in (case.lead, case.normalized))
    gamma = "no gamma" if case.gamma_dtype is None else f"gamma {case.gamma_dtype}"
    outputs = ", ".join(
        f"{name} {dtype}" for name, dtype, on in zip(OUTPUTS, case.output_dtypes, case.output_mask, strict=True) if on
    )
    norm = "" if case.norm == "layer_norm" else f"{case.norm} "
    return f"{norm}{lead} | {normalized} {case.dtype}, {gamma}, {case.third} {case.statistics_dtype} → {outputs or 'nothing'}"


def check_case(case: CheckCase, options: Options, kernels: Kernels = here) -> CaseResult:
    """Run and judge one case. An exception of the implementation is a failed case; its text is the reason.

    Args:
        case, options: What to run.
        kernels: Gives an implementation by its name; one that is not trusted lives in a process of its own.

    Raises:
        BackendUnavailable: There is no such implementation.
        FileFormatError: The case asks for what does not exist.
    """
    standard = case.standard or options.standard
    if standard == AUTO:
        standard = usual(case.dtype)
    start = perf_counter()
    bare = CaseResult(case.label, str(case.source), "skipped", "", case_facts(case), standard, others=case.others)
    bare = replace(bare, command=command_of(case, options))
    if not case.enabled:
        return replace(bare, reason="switched off in its file")
    if standard not in STANDARDS:
        raise FileFormatError(f"{case.source}: standard: expected one of {', '.join(STANDARDS)}, got {standard!r}")
    if case.nbytes > options.max_bytes:
        text = f"needs {case.nbytes} bytes, --max-bytes allows {options.max_bytes}"
        return replace(bare, status="failed", reason=f"too large: {text}")
    try:
        result = Trial(case, options, standard, kernels).result(bare)
    except BackendUnavailable:
        raise
    except NotApplicable as reason:
        result = replace(bare, reason=str(reason))
    except Exception as error:
        text = str(error) if isinstance(error, KernelError) else first_line(error)
        result = replace(bare, status="failed", reason=text)
    return replace(result, seconds=perf_counter() - start)


def command_of(case: CheckCase, options: Options) -> str:
    import shlex

    seed = options.seed if case.seed is None else case.seed
    where = case.source.file if case.source.file.startswith(FUZZ) else shlex.quote(case.source.file)
    return f"{options.invoked} {where} --seed {seed} --filter {shlex.quote('=' + case.name)}"
