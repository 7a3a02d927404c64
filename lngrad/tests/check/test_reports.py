"""What is told of formulas and of an earlier run; the plugin for pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

import lngrad
from lngrad.check.judge import Options, check_case
from lngrad.check.reports.html import formula_html, strip, write_report
from lngrad.check.reports.journal import Journal, changes, write_junit
from lngrad.check.result import CaseResult, Formula, Weights
from lngrad.errors import FileFormatError, printable

ROOT = Path(__file__).parents[3]


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
    assert [change.kind for change in changes([bad], [good])] == ["better"]
    assert [change.kind for change in changes([good], [bad])] == ["worse"]
    (parameter,) = changes([bad], [other])
    assert (parameter.kind, parameter.text) == ("other", "gamma forgotten, now last row lost")
    assert changes([bad], [bad]) == []
    assert changes([replace(bad, name="another")], [good]) == []


HOSTILE = (
    "\x1b[31m \x1b]8;;http://x\x07 \u202eabc\u2066 [bold]x[/bold] badsig:two: kernel.cu:fire: \x9b\r\x00\udc80 中文\\\\"
)
SHOWN = (
    r"\x1b[31m \x1b]8;;http://x\x07 \u202eabc\u2066 [bold]x[/bold] badsig:two: kernel.cu:fire: \x9b\r\x00\udc80 中文\\"
)


def test_foreign_text_is_made_printable():
    assert printable(HOSTILE) == SHOWN
    shown = StringIO()
    Console(file=shown, width=400, highlight=False).print(f"[bold]{printable(HOSTILE, markup=True)}[/]")
    assert shown.getvalue() == SHOWN + "\n"


def test_names_from_case_files_are_made_printable_in_every_report(make_case, tmp_path):
    result = check_case(make_case(name=HOSTILE), Options(impl="mutant:gamma forgotten"))
    result = replace(result, reason=HOSTILE, source=HOSTILE)
    write_report(tmp_path / "r.html", [result], Options(), 1.0)
    write_junit(tmp_path / "r.xml", [result], HOSTILE)
    html, xml = ((tmp_path / name).read_text("utf-8") for name in ("r.html", "r.xml"))
    assert "\\u202eabc" in html
    assert "\\u202eabc" in xml
    for letter in "\x1b\x07\u202e\u2066\x9b\x00":
        assert letter not in html + xml
    assert ElementTree.fromstring(xml)[0][0].get("name") == SHOWN  # our own file


def append_to(path, result):
    with Journal(path) as journal:
        journal.append(result)


def test_a_report_is_written_whole_or_not_at_all(make_case, tmp_path, monkeypatch):
    result = check_case(make_case(), Options(impl="numpy_cpu"))
    writers = {
        "r.html": lambda path: write_report(path, [result], Options(), 1.0),
        "r.xml": lambda path: write_junit(path, [result], "numpy_cpu"),
        "r.jsonl": lambda path: append_to(path, result),
    }
    for name, write in writers.items():
        write(tmp_path / name)
        before = (tmp_path / name).read_bytes()
        (tmp_path / name).write_text("an earlier one")
        write(tmp_path / name)  # is replaced
        assert abs(len((tmp_path / name).read_bytes()) - len(before)) < 10

    def full(self, *arguments, **others):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    for name, write in writers.items():
        with pytest.raises(FileFormatError, match=f"{name}: can't be written: No space left on device"):
            write(tmp_path / name)
        with pytest.raises(FileFormatError, match=r"new.*: can't be written: No space left on device"):
            write(tmp_path / f"new-{name}")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(writers)
    assert all(path.stat().st_size for path in tmp_path.iterdir())


def test_a_journal_ends_with_a_whole_line_on_a_full_disk(make_case, tmp_path):
    result = check_case(make_case(), Options(impl="numpy_cpu"))
    path = tmp_path / "r.jsonl"
    program = (
        "import json, resource, sys\n"
        "from pathlib import Path\n"
        "from lngrad.check.reports.journal import Journal, read_journal\n"
        "path = Path(sys.argv[1])\n"
        "(result,) = read_journal(path).values()\n"
        "size = path.stat().st_size\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3 * size + 10, resource.RLIM_INFINITY))\n"
        "with Journal(path, [result]) as journal:\n"
        "    for _ in range(9):\n"
        "        journal.append(result)\n"
    )
    append_to(path, result)
    line = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    assert "r.jsonl: can't be written: " in done.stderr
    assert path.read_bytes() == 3 * line


def test_compare_on_the_command_line(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    cases = ROOT / "cases" / "lngrad.yaml"
    first = run("check", cases, "--impl", "mutant:gamma forgotten", "--filter", "65_by_64*", "--json", "old.jsonl")
    assert first.exit_code == 1
    second = run("check", cases, "--impl", "numpy_cpu", "--filter", "65_by_64*", "--compare", "old.jsonl")
    assert second.exit_code == 0, second.output
    assert "better, 0 worse, 0 otherwise changed" in second.output
    assert run("check", cases, "--compare", "nothing.jsonl").exit_code == 2


PLUGIN = {  # a kernel that doubles a sum of six rows; options, the formula, and its tests that fail and pass
    "layer_norm": (
        "def backward(dy, x, mean, rstd, gamma, normalized_shape, output_mask):\n"
        "    grads = lngrad.layer_norm_backward(dy, x, mean, rstd, gamma, normalized_shape=normalized_shape,\n"
        "                                       output_mask=output_mask)\n"
        "    return grads.dx, grads.dgamma, grads.dbeta if len(x) != 6 else 2 * grads.dbeta\n",
        [], "dbeta = **2**·Σ_rows dy", "1 failed, 1 passed",
    ),
    "rms_norm": (
        "def backward(dy, x, rstd, gamma, normalized_shape, output_mask):\n"
        "    grads = lngrad.rms_norm_backward(dy, x, rstd, gamma, normalized_shape=normalized_shape,\n"
        "                                     output_mask=output_mask)\n"
        "    return grads.dx, grads.dgamma if len(x) != 6 else 2 * grads.dgamma\n",
        ["--lngrad-norm", "rms_norm"], "dgamma = **2**·Σ_rows dy·xhat", "1 failed, 2 passed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("norm", PLUGIN)
def test_the_pytest_plugin_makes_a_test_of_every_case(norm, tmp_path):
    kernel, options, formula, counted = PLUGIN[norm]
    (tmp_path / "somebody.py").write_text(f"import lngrad\n{kernel}")
    environment = os.environ | {"PYTHONPATH": f"{Path(lngrad.__file__).parents[1]}{os.pathsep}{tmp_path}"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--lngrad-impl",
        "somebody:backward",
        "-k",
        "small",
        *options,
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert counted in done.stdout
    assert "lngrad[small]" in done.stdout
    assert formula in done.stdout
    assert "lngrad check --impl somebody:backward" + (f" --norm {norm}" if options else "") in done.stdout


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
    result = run(*words[1:], "--filter", "=bfloat16")
    assert result.exit_code == 1, result.output
    assert "mean of dxhat missing" in result.output
    (upload,) = [step for step in steps if "upload-artifact" in step.get("uses", "")]
    for name in upload["with"]["path"].split():
        assert (tmp_path / name).is_file(), name


def test_the_step_of_the_action_runs_here(tmp_path):
    """The check step of action.yml, as it is written; each action that it uses is pinned."""
    import re

    import yaml

    text = (ROOT / "action.yml").read_text("utf-8")
    assert all(re.search(r"@[0-9a-f]{40}  # v\d", item) for item in re.findall(r"- uses: (actions/.*)", text))
    (step,) = [item for item in yaml.safe_load(text)["runs"]["steps"] if item.get("id") == "check"]
    paths = f"{Path(lngrad.__file__).parents[1]}{os.pathsep}{ROOT}"
    environment = os.environ | {
        "IMPL": "examples.check_my_kernel:backward", "CASES": "", "OPTIONS": "--filter =bfloat16", "PYTHONPATH": paths,
        "GITHUB_OUTPUT": str(tmp_path / "output"), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    for name, words in (("lngrad", "-m lngrad"), ("python", "")):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (tmp_path / name).chmod(0o700)
    done = subprocess.run(
        ["bash", "-e", "-c", step["run"]], cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert (tmp_path / "output").read_text() == "verdict=FAIL\n"
    assert {"lngrad.jsonl", "lngrad.sarif", "lngrad.html"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(("most", "code"), [("50%", 1), ("99%", 0)])
def test_too_many_skipped_cases_are_no_pass_in_pytest(most, code, tmp_path):
    (tmp_path / "somebody.py").write_text(
        "import lngrad\n"
        "def backward(dy, x, mean, rstd, gamma, normalized_shape, output_mask):\n"
        "    if len(x) != 6:\n        raise NotImplementedError\n"
        "    return lngrad.layer_norm_backward(dy, x, mean, rstd, gamma, normalized_shape=normalized_shape,\n"
        "                                      output_mask=output_mask)\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{Path(lngrad.__file__).parents[1]}{os.pathsep}{tmp_path}"}
    words = [
        "--lngrad-impl",
        "somebody:backward",
        "--lngrad-seeds",
        "3",
        "--lngrad-max-skipped",
        most,
        "-k",
        "one or small",
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "lngrad[small, seed 2]" in done.stdout or "3 passed" in done.stdout, done.stdout
    assert done.returncode == code, done.stdout + done.stderr
    assert ("that is no pass" in done.stdout) == bool(code)


def test_the_terminal_shows_foreign_text_and_obeys_nothing_in_it(capsys, make_case):
    from rich.console import Console

    from lngrad.check.result import CaseResult
    from lngrad.check.verdict import summary
    from lngrad.cli.check import _print_result, _print_summary
    from lngrad.cli.terminal import say

    names = dict.fromkeys(("name", "reason", "mistake", "sentence", "facts", "command"), HOSTILE)
    result = CaseResult(**{"source": "x.yaml", "standard": "mixed", "status": "failed", **names})
    console = Console(force_terminal=False, width=400, highlight=False)
    _print_result(console, result)
    _print_summary(console, summary([result], [make_case(name=HOSTILE)], Options(), None, 1.0), [result])
    say(HOSTILE)
    shown = capsys.readouterr().out
    assert shown.count(SHOWN) == 8
    assert all(letter.isprintable() or letter == "\n" for letter in shown)
