"""Names say what a thing is: no variable, argument or attribute has a name that is only a word of the sentence around it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from packages import ROOT

WORDS = {"one", "given", "told", "said", "there", "made", "some"}
FOLDERS = ("lngrad", "lngrad-ascend", "tests", "scripts", "benchmarks", "examples", "docs", "cases")


def bindings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that is bound, with its line: by assignment, as a parameter, in a loop, a pattern or an `as`."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
                yield name, node.lineno
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield name, node.lineno


def grammar_in(text: str) -> list[tuple[str, int]]:
    return sorted({(name, line) for name, line in bindings(ast.parse(text)) if name in WORDS}, key=lambda pair: pair[1])


def programs() -> Iterator[Path]:
    yield ROOT / "conftest.py"
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("text", [
    "one = 1", "for given in x: pass", "[told for told in x]", "def f(said): pass", "lambda there: 0", "x.made = 1",
    "with x as some: pass", "import x as one", "(given := 1)", "try: pass\nexcept E as made: pass", "one, two = x",
    "def f(*, told=1): pass", "def f(*some): pass", "match x:\n    case [*said]: pass", "one: int = 1",
])  # fmt: skip
def test_a_binding_is_found(text):
    assert len(grammar_in(text)) == 1


def test_what_is_no_binding_is_left():
    assert grammar_in("from hypothesis import given\n@given(x)\ndef f(x): return x.one + said(some) + f(made=1)") == []


def test_names_are_nouns():
    found = {
        str(path.relative_to(ROOT)): names for path in programs() if (names := grammar_in(path.read_text("utf-8")))
    }
    lines = [f"{path}:{line}: {name}" for path, names in found.items() for name, line in names]
    assert {line for line in lines if line.partition(":")[0] not in LEFT} == set(), "name the thing itself"
    assert [path for path in LEFT if path not in found] == [], "these have none any more: take them off the list"


# Files that still have such names. The list only shrinks.
LEFT: set[str] = {
    "benchmarks/peers.py",
    "lngrad/scripts/prebuilt.py",
    "lngrad/src/lngrad/api.py",
    "lngrad/src/lngrad/bench/cpu.py",
    "lngrad/src/lngrad/bench/family.py",
    "lngrad/src/lngrad/bench/peers.py",
    "lngrad/src/lngrad/bench/runner.py",
    "lngrad/src/lngrad/check/calls/kernel.py",
    "lngrad/src/lngrad/check/calls/process.py",
    "lngrad/src/lngrad/check/case.py",
    "lngrad/src/lngrad/check/case_calls.py",
    "lngrad/src/lngrad/check/certify/__init__.py",
    "lngrad/src/lngrad/check/certify/bits.py",
    "lngrad/src/lngrad/check/certify/measured.py",
    "lngrad/src/lngrad/check/certify/properties.py",
    "lngrad/src/lngrad/check/certify/sums.py",
    "lngrad/src/lngrad/check/certify/trees.py",
    "lngrad/src/lngrad/check/comparison.py",
    "lngrad/src/lngrad/check/formats/__init__.py",
    "lngrad/src/lngrad/check/formats/own.py",
    "lngrad/src/lngrad/check/formats/reading.py",
    "lngrad/src/lngrad/check/formats/ttk_atk.py",
    "lngrad/src/lngrad/check/golden.py",
    "lngrad/src/lngrad/check/implementations/forwards.py",
    "lngrad/src/lngrad/check/implementations/hub.py",
    "lngrad/src/lngrad/check/implementations/implementation.py",
    "lngrad/src/lngrad/check/implementations/libraries.py",
    "lngrad/src/lngrad/check/implementations/ours.py",
    "lngrad/src/lngrad/check/implementations/users.py",
    "lngrad/src/lngrad/check/inputs.py",
    "lngrad/src/lngrad/check/layouts.py",
    "lngrad/src/lngrad/check/mistakes/changes.py",
    "lngrad/src/lngrad/check/mistakes/column_sums.py",
    "lngrad/src/lngrad/check/mistakes/diagnosis.py",
    "lngrad/src/lngrad/check/mistakes/dx_search.py",
    "lngrad/src/lngrad/check/mistakes/explain.py",
    "lngrad/src/lngrad/check/mistakes/fit.py",
    "lngrad/src/lngrad/check/mistakes/indices.py",
    "lngrad/src/lngrad/check/mistakes/misplaced.py",
    "lngrad/src/lngrad/check/mistakes/other_inputs.py",
    "lngrad/src/lngrad/check/mistakes/places.py",
    "lngrad/src/lngrad/check/mistakes/precision.py",
    "lngrad/src/lngrad/check/mistakes/row_means.py",
    "lngrad/src/lngrad/check/mistakes/sum_weights.py",
    "lngrad/src/lngrad/check/mistakes/terms.py",
    "lngrad/src/lngrad/check/reports/certificate.py",
    "lngrad/src/lngrad/check/reports/html.py",
    "lngrad/src/lngrad/check/reports/journal.py",
    "lngrad/src/lngrad/check/reproduction.py",
    "lngrad/src/lngrad/check/result.py",
    "lngrad/src/lngrad/check/standards.py",
    "lngrad/src/lngrad/check/trial.py",
    "lngrad/src/lngrad/check/verdict.py",
    "lngrad/src/lngrad/cli/certify.py",
    "lngrad/src/lngrad/cli/check.py",
    "lngrad/src/lngrad/cli/demo.py",
    "lngrad/src/lngrad/cli/terminal.py",
    "lngrad/src/lngrad/core/arrays.py",
    "lngrad/src/lngrad/core/calls.py",
    "lngrad/src/lngrad/core/fallbacks.py",
    "lngrad/src/lngrad/core/machine.py",
    "lngrad/src/lngrad/cpu/cache.py",
    "lngrad/src/lngrad/cpu/entries.py",
    "lngrad/src/lngrad/cpu/prebuilt.py",
    "lngrad/src/lngrad/cpu/processors.py",
    "lngrad/src/lngrad/distributed.py",
    "lngrad/src/lngrad/gpu/kernels.py",
    "lngrad/tests/bench/test_cpu_bench.py",
    "lngrad/tests/bench/test_cuda_bench.py",
    "lngrad/tests/bench/test_gpu_bands.py",
    "lngrad/tests/bench/test_records.py",
    "lngrad/tests/check/conftest.py",
    "lngrad/tests/check/kernels/cheats.py",
    "lngrad/tests/check/kernels/forwards.py",
    "lngrad/tests/check/kernels/jax_forwards.py",
    "lngrad/tests/check/kernels/right.py",
    "lngrad/tests/check/test_certify.py",
    "lngrad/tests/check/test_command.py",
    "lngrad/tests/check/test_diagnosis.py",
    "lngrad/tests/check/test_explain.py",
    "lngrad/tests/check/test_false_names.py",
    "lngrad/tests/check/test_formats.py",
    "lngrad/tests/check/test_formula.py",
    "lngrad/tests/check/test_forwards.py",
    "lngrad/tests/check/test_gated_and_modulated.py",
    "lngrad/tests/check/test_hostile_implementations.py",
    "lngrad/tests/check/test_kernels.py",
    "lngrad/tests/check/test_names_of_all_failures.py",
    "lngrad/tests/check/test_places.py",
    "lngrad/tests/check/test_precision_and_counts.py",
    "lngrad/tests/check/test_promises.py",
    "lngrad/tests/check/test_recovered_mistakes.py",
    "lngrad/tests/check/test_regression_corpus.py",
    "lngrad/tests/check/test_reports.py",
    "lngrad/tests/check/test_wrong_formulas.py",
    "lngrad/tests/cli/test_cli.py",
    "lngrad/tests/cli/test_cli_progress.py",
    "lngrad/tests/cli/test_demo.py",
    "lngrad/tests/core/test_addresses.py",
    "lngrad/tests/core/test_axis.py",
    "lngrad/tests/core/test_backends.py",
    "lngrad/tests/core/test_bits.py",
    "lngrad/tests/core/test_calls.py",
    "lngrad/tests/core/test_floating_point_modes.py",
    "lngrad/tests/core/test_identities.py",
    "lngrad/tests/core/test_memory.py",
    "lngrad/tests/core/test_memory_that_is_gone.py",
    "lngrad/tests/core/test_overlap.py",
    "lngrad/tests/core/test_precision.py",
    "lngrad/tests/core/test_problem.py",
    "lngrad/tests/core/test_samples_and_streams.py",
    "lngrad/tests/core/test_special_values.py",
    "lngrad/tests/core/test_threads.py",
    "lngrad/tests/cpu/test_cache.py",
    "lngrad/tests/cpu/test_large.py",
    "lngrad/tests/cpu/test_policy.py",
    "lngrad/tests/cpu/test_prebuilt.py",
    "lngrad/tests/cpu/test_workers.py",
    "lngrad/tests/distributed/distributed_bits.py",
    "lngrad/tests/distributed/distributed_checks.py",
    "lngrad/tests/distributed/distributed_compiled.py",
    "lngrad/tests/distributed/distributed_harness.py",
    "lngrad/tests/distributed/distributed_layouts.py",
    "lngrad/tests/distributed/test_distributed.py",
    "lngrad/tests/distributed/test_slices.py",
    "lngrad/tests/files/test_files.py",
    "lngrad/tests/golden_cases.py",
    "lngrad/tests/gpu/test_triton_gpu.py",
    "lngrad/tests/gpu/test_triton_launch.py",
    "lngrad/tests/interpreted.py",
    "lngrad/tests/norms.py",
    "lngrad/tests/soak/call.py",
    "lngrad/tests/soak/entries.py",
    "lngrad/tests/soak/faults.py",
    "lngrad/tests/soak/formula.py",
    "lngrad/tests/soak/run.py",
    "lngrad/tests/soak/test_faults.py",
    "lngrad/tests/soak/test_kernel_cache.py",
    "lngrad/tests/soak/test_soak.py",
    "lngrad/tests/soak/test_together.py",
    "tests/meta/test_wheel.py",
}
