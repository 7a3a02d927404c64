"""Implementations that lngrad-ascend adds to the check: lngrad's cases, and what is said without the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from check_cases import run
from lngrad.check import implementations
from lngrad.check.implementations import Added, find, names
from lngrad.errors import BackendUnavailable
from lngrad_ascend.referee import ADDED

CASES = Path(__file__).parents[3] / "cases"
FEW = pytest.param("*_by_64_*")
ALL = pytest.param("*", marks=pytest.mark.slow)


@pytest.mark.parametrize("which", [FEW, ALL])
@pytest.mark.parametrize(
    ("impl", "standard"), [("graph", "exact"), ("graph_v3", "exact"), ("aclnn", "exact"), ("ascend_sim", "mixed")]
)
def test_our_own_cases_pass_at_ascend_s_interfaces(impl, standard, which):
    result = run("check", CASES, "--impl", impl, "--standard", standard, "--max-skipped", "90%", "--filter", which)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("impl", ["graph", "aclnn"])
def test_norms_of_sums_pass_at_ascend_s_interfaces(impl):
    """AddLayerNormGrad and DeepNormGrad on the family's own cases of shape and statistics."""
    for norm, name in (("add_layer_norm", "*stream"), ("deep_norm", "DeepNorm"), ("deep_norm", "*given*")):
        result = run(
            "check", "--impl", impl, "--norm", norm, "--standard", "exact", "--max-skipped", "50%", "--filter", name
        )
        assert result.exit_code == 0, result.output
        assert " 0 failed" in result.output


def test_all_that_is_added_has_a_package_s_name_where_it_is_absent(monkeypatch):
    assert {*ADDED.rows, *ADDED.prefixes} == implementations.ELSEWHERE.keys()
    assert {*ADDED.rows, "ascendc:FILE.cpp:KERNEL"} <= {*names()}
    monkeypatch.setattr(implementations, "added", lambda: Added({}, {}))
    for name in (*ADDED.rows, "ascendc:k.cpp:k"):
        word = name.partition(":")[0]
        with pytest.raises(BackendUnavailable) as refused:
            find(name)
        assert str(refused.value) == f"--impl: {word} needs lngrad-ascend: pip install lngrad-ascend"
