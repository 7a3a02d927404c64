"""What is told of formulas and of an earlier run; the plugin for pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import lngrad
from lngrad.check.judge import Options, check_case
from lngrad.check.reports.compare import changes
from lngrad.check.reports.formula_html import formula_html, strip
from lngrad.check.result import CaseResult, Formula, Weights

ROOT = Path(__file__).parents[2]


def test_a_result_with_formulas_and_weights_goes_round(make_case):
    result = check_case(make_case(), Options(impl="mutant:last row lost"))
    assert CaseResult.from_json(result.to_json()) == result
    result = check_case(make_case(), Options(impl="mutant:mean of dxhat missing"))
    assert result.formulas[0].text == "dx = rstd·(dxhat − **0**·mean_dxhat − xhat·mean_dxhat_xhat)"
    assert CaseResult.from_json(result.to_json()) == result


def test_formulas_are_escaped_and_typeset():
    html = formula_html(Formula("dx", (("rstd·(", False), ("mean(dy·(1+γ)·<b>)", True), (")", False))))
    assert "<mark>" in html
    assert "<b>" not in html
    assert '<span class="mean"><i>d</i><i>y</i>·(1+γ)·&lt;b&gt;</span>' in html
    picture = strip(Weights("dbeta", "row", ((0, 3, 1.0), (3, 1, 0.0)), "row 3 of 4 is missing"))
    assert picture.count("<rect") == 2
    assert 'class="w0" x="750.000" width="250.000"' in picture


def test_what_got_better_and_what_got_worse(make_case):
    good, bad = (check_case(make_case(), Options(impl=impl)) for impl in ("numpy_cpu", "mutant:gamma forgotten"))
    other = check_case(make_case(), Options(impl="mutant:last row lost"))
    assert [one.kind for one in changes([bad], [good])] == ["better"]
    assert [one.kind for one in changes([good], [bad])] == ["worse"]
    (one,) = changes([bad], [other])
    assert (one.kind, one.text) == ("other", "gamma forgotten, now last row lost")
    assert changes([bad], [bad]) == []
    assert changes([replace(bad, name="another")], [good]) == []


def test_compare_on_the_command_line(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    cases = ROOT / "cases" / "lngrad.yaml"
    first = run("check", cases, "--impl", "mutant:gamma forgotten", "--filter", "65_by_64*", "--json", "old.jsonl")
    assert first.exit_code == 1
    second = run("check", cases, "--impl", "numpy_cpu", "--filter", "65_by_64*", "--compare", "old.jsonl")
    assert second.exit_code == 0, second.output
    assert "better, 0 worse, 0 otherwise changed" in second.output
    assert run("check", cases, "--compare", "nothing.jsonl").exit_code == 2


def test_the_pytest_plugin_makes_a_test_of_every_case(tmp_path):
    (tmp_path / "somebody.py").write_text(
        "import lngrad\n"
        "def backward(dy, x, mean, rstd, gamma, normalized_shape, output_mask):\n"
        "    grads = lngrad.layer_norm_backward(dy, x, mean, rstd, gamma, normalized_shape=normalized_shape,\n"
        "                                       output_mask=output_mask)\n"
        "    return grads.dx, grads.dgamma, grads.dbeta if len(x) != 33 else 2 * grads.dbeta\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{Path(lngrad.__file__).parents[1]}{os.pathsep}{tmp_path}"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--lngrad-impl", "somebody:backward"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed" in done.stdout
    assert "lngrad[tail]" in done.stdout
    assert "dbeta = **2**·Σ_rows dy" in done.stdout
    assert "lngrad check --impl somebody:backward" in done.stdout


def test_the_steps_of_the_workflow_run_here(tmp_path, monkeypatch, run):
    """The check step of the example for GitHub, as it is written, on one case and the example's kernel."""
    import shlex

    import yaml

    text = (ROOT / "examples" / "check-gradients.yml").read_text("utf-8")
    steps = yaml.safe_load(text)["jobs"]["check"]["steps"]
    (command,) = [step["run"] for step in steps if "lngrad check" in step.get("run", "")]
    words = shlex.split(command)
    assert words[:2] == ["lngrad", "check"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("PYTHONPATH", f"{Path(lngrad.__file__).parents[1]}{os.pathsep}{ROOT}")
    words[words.index("my_package.kernels:backward")] = "examples.check_my_kernel:backward"
    result = run(*words[1:], "--filter", "=65_by_64_bf16_bf16_0")
    assert result.exit_code == 1, result.output
    assert "mean of dxhat missing" in result.output
    (upload,) = [step for step in steps if "upload-artifact" in step.get("uses", "")]
    for name in upload["with"]["path"].split():
        assert (tmp_path / name).is_file(), name
