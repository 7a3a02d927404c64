"""The commands: exit codes, isolation, time limit, resuming, reports, goldens and dumps."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import lngrad
from lngrad.check import reproduction
from lngrad.check.inputs import draw
from lngrad.check.judge import Options, check_case
from lngrad.check.mistakes.catalogue import MISTAKES
from lngrad.check.result import CaseResult, settled
from lngrad.check.verdict import summary
from lngrad.cli.check import _print_summary
from lngrad.cli.commands import app
from lngrad.testing import check_same_bits

ROOT = Path(__file__).parents[3]
CASES = ROOT / "cases"

YAML = """
lngrad: 1
cases:
  - {name: good, shape: [6, 8]}
  - {name: crash, shape: [7, 8]}
  - {name: hang, shape: [8, 8]}
  - {name: raise, shape: [9, 8]}
  - {name: <b>&"wrong", shape: [40, 8]}
"""
KERNEL = """
import os, time
import lngrad

def kernel(dy, x, mean, rstd, gamma):
    print("a word before the end", flush=True)
    if len(x) == 7:
        os.abort()
    if len(x) == 8:
        time.sleep(60)
    if len(x) == 9:
        raise ValueError("not today")
    grads = lngrad.layer_norm_backward(dy, x, mean, rstd, gamma, backend="numpy_cpu")
    return (2 * grads.dx if len(x) == 40 else grads.dx), grads.dgamma, grads.dbeta
"""


@pytest.fixture
def bench(tmp_path, monkeypatch) -> Path:
    """A folder with a case file and somebody's module, as the working directory."""
    (tmp_path / "cases.yaml").write_text(YAML)
    (tmp_path / "somebody.py").write_text(KERNEL)
    monkeypatch.chdir(tmp_path)
    source = Path(lngrad.__file__).parents[1]  # processes of the test find this lngrad, wherever it is
    monkeypatch.setenv("PYTHONPATH", f"{source}{os.pathsep}{tmp_path}")
    return tmp_path


def statuses(path: Path) -> dict[str, str]:
    *results, run = map(json.loads, path.read_text("utf-8").splitlines())
    assert run["counts"] == {item: sum(it["status"] == item for it in results) for item in run["counts"]}
    return {result["name"]: result["status"] for result in results}


def test_a_crash_and_a_hang_are_failed_cases_and_every_report_tells_them(bench, run, monkeypatch):
    monkeypatch.setattr(reproduction, "SEARCH_SECONDS", 0.1)  # a smaller case that hangs takes two
    result = run("check", "cases.yaml", "--impl", "somebody:kernel", "--jobs", 2, "--time-limit", 2,
                 "--json", "r.jsonl", "--junit", "r.xml", "--report", "r.html")  # fmt: skip
    assert result.exit_code == 1, result.output
    found = statuses(bench / "r.jsonl")
    assert found.pop("good") == "passed"
    assert set(found.values()) == {"failed"}
    text = " ".join(result.output.split())
    assert "crashed (SIGABRT); it said: " in text
    assert "a word before the end" in text
    assert "not done within 2 s (--time-limit)" in text
    assert "ValueError: not today" in text
    assert "2 times what it should be" in text
    suite = ElementTree.parse(bench / "r.xml").getroot()[0]  # our own file
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "4", "0")
    html = (bench / "r.html").read_text("utf-8")
    assert '<b>&"wrong' not in html
    assert "&lt;b&gt;&amp;" in html
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", html)


def test_a_text_that_was_said_before_keeps_its_numbers(bench, run):
    (bench / "ends.py").write_text("import os\ndef kernel(dy, x):\n    os._exit(3 + len(x))\n")
    result = run("check", "--impl", "ends:kernel", "--filter", "6* by 64", "--fuzz", 0, "--jobs", 1)
    assert "failed 65 by 64  crashed (exit code 68)" in result.output, result.output
    assert "#" not in result.output


def test_a_name_that_is_withdrawn_is_marked(make_case):
    item = CaseResult("one", "", "failed", "", "", "exact", mistake="a", sentence="about a")
    many = [replace(item, name=f"{place}", mistake=f"b of {place}") for place in range(5)]
    found = [item, *many, replace(item, mistake="b of 1", alternatives=(("c of 3", ""),))]
    results = [*settled(found)[:-1], replace(found[-1], mistake="c of 3")]
    changed = summary(results, [make_case(name=each.name) for each in results], Options(), None, 1.0)
    console = Console(file=StringIO(), width=200)
    _print_summary(console, changed, found)
    text_of_output = console.file.getvalue()
    assert "5 × b of …\n" in text_of_output
    assert "withdrawn above: 1 × a: the other failures speak against it\n" in text_of_output
    assert "withdrawn above: 1 × b of 1: it is c of 3, which explains more failures\n" in text_of_output


def test_resume_keeps_what_is_done(bench, run):
    first = run("check", "cases.yaml", "--impl", "numpy_cpu", "--json", "r.jsonl", "--limit", 2)
    assert first.exit_code == 0
    lines = (bench / "r.jsonl").read_text("utf-8").splitlines()
    done = json.loads(lines[0])
    done["seconds"] = 1234.5  # to be told from a result that was computed anew
    (bench / "r.jsonl").write_text(json.dumps(done) + "\n" + lines[1][:50])  # and a line that was cut off
    second = run("check", "cases.yaml", "--impl", "numpy_cpu", "--json", "r.jsonl", "--resume", "any")
    assert second.exit_code == 0
    assert "5 passed" in second.output
    assert second.output.startswith("1 of 5 cases were not judged: believed, as --resume any says")
    *results, last = map(json.loads, (bench / "r.jsonl").read_text("utf-8").splitlines())
    seconds = [result["seconds"] for result in results]
    assert last["verdict"] == "PASS WITH LIMITS"
    assert seconds.count(1234.5) == 1
    third = run("check", "cases.yaml", "--impl", "numpy_cpu", "--json", "r.jsonl", "--resume", "any", "--seed", 1)
    assert "1234.5" not in (bench / "r.jsonl").read_text("utf-8"), third.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nothing.yaml"], "nothing.yaml: no such file or folder"),
        (["cases.yaml", "--impl", "nobody"], "--impl: expected one of numba_cpu"),
        (["cases.yaml", "--impl", "nobody:kernel"], "--impl: nobody:kernel: No module named 'nobody'"),
        (["cases.yaml", "--impl", "somebody:nothing"], "has no attribute 'nothing'"),
        (["cases.yaml", "--standard", "strict"], "--standard: expected one of auto, mixed, stat"),
        (["cases.yaml", "--resume", "any"], "--resume: needs --json"),
        (["cases.yaml", "--filter", "zzz"], "--filter: none of 5 cases matches 'zzz'"),
        (["cases.yaml", "--against", "nowhere"], "nowhere: no such file or folder"),
        (["cases.yaml", "--report", "no/where.html"], "no folder no"),
        *(
            (["cases.yaml", name, "cases.yaml"], "has the cases, and is not")
            for name in ("--report", "--junit", "--json")
        ),
        (["somebody.py"], "expected .csv (TTK), .json (ATK), .yaml"),
        (
            ["cases.yaml", "--impl", "mutant:nothing"],
            f"mutant: expected one of {len(MISTAKES)} known mistakes, got 'nothing'",
        ),
    ],
)
def test_what_cannot_be_used_is_one_line_and_exit_code_2(bench, run, arguments, text):
    result = run("check", *arguments)
    assert result.exit_code == 2, result.output
    assert text in " ".join(result.output.split())


def test_a_case_that_is_too_large_is_refused_before_it_is_allocated(bench, run):
    (bench / "large.yaml").write_text("lngrad: 1\ncases:\n  - {name: large, shape: [1000000000, 1000000]}\n")
    result = run("check", "large.yaml", "--impl", "numpy_cpu")
    assert result.exit_code == 1
    assert "too large: needs" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("form", "which"),
    [(form, "64_by_63_bf16*") for form in ("bin", "npy", "npz", "safetensors")]
    + [pytest.param("bin", "*_by_63_b*", marks=pytest.mark.slow)],
)
def test_goldens_are_cases_again_and_judge_dumps(tmp_path, run, form, which):
    result = run("golden", CASES / "lngrad.yaml", "-o", tmp_path / "g", "--format", form, "--filter", which)
    assert result.exit_code == 0, result.output
    if form == "bin":  # dumps are judged by the same inputs
        again = run("check", tmp_path / "g", "--impl", "numpy_cpu", "--standard", "exact")
        assert again.exit_code == 0, again.output
    against = run("check", tmp_path / "g", "--against", tmp_path / "g", "--standard", "binary")
    assert against.exit_code == 0, against.output
    assert run("golden", CASES / "lngrad.yaml", "-o", tmp_path / "g").exit_code == 2  # not empty


def test_a_wrong_dump_is_found_and_diagnosed(tmp_path, run):
    assert run("golden", CASES / "lngrad.yaml", "-o", tmp_path / "g", "--filter", "=7_by_8_fp32_fp32_4").exit_code in (
        0,
        2,
    )
    assert run("golden", CASES / "lngrad.yaml", "-o", tmp_path / "h", "--filter", "=no gamma").exit_code == 0
    (dump,) = (tmp_path / "h").glob("*/golden_1_*.bin")
    np.fromfile(dump, np.float32).__imul__(2).tofile(dump)
    (other,) = (tmp_path / "h").glob("*/golden_2_*.bin")
    np.fromfile(other, np.float32).__imul__(2).tofile(other)
    result = run("check", tmp_path / "h", "--against", tmp_path / "h")
    assert result.exit_code == 1
    assert "sums added twice" in result.output


def test_blocks_of_rows_have_the_inputs_and_the_verdict_of_the_whole(make_case):
    case = make_case(lead=(5000,), normalized=(64,), ranges={})
    whole = draw(case, 3, 0, 5000, 1 << 30)
    block = draw(case, 3, 1024, 2048, 1 << 30)
    check_same_bits(np.asarray(block.inputs.x), np.asarray(whole.inputs.x)[1024:2048])
    check_same_bits(np.asarray(block.inputs.gamma), np.asarray(whole.inputs.gamma))
    for impl, status in (("numpy_cpu", "passed"), ("mutant:gamma forgotten", "failed")):
        result = check_case(case, Options(impl=impl, standard="exact", block_bytes=1 << 20))
        assert result.status == status, result
    assert result.mistake == "gamma forgotten"


def test_inputs_are_the_same_on_every_machine(make_case):
    inputs_by_name = draw(make_case(ranges={"x": (-2.0, 2.0, float("nan"))}), 0, 0, 77, 1 << 30).inputs
    assert np.isnan(inputs_by_name.x.reshape(-1)[924])
    assert float(inputs_by_name.dy.reshape(-1)[0]).hex() == "-0x1.4fc4000000000p+0"


# The cases whose names have this; all of them where it is slow.
FEW = pytest.param("*_by_64_*")
ALL = pytest.param("*", marks=pytest.mark.slow)


@pytest.mark.parametrize("which", [FEW, ALL])
@pytest.mark.parametrize("impl", ["numba_cpu", "numpy_cpu"])
def test_our_own_cases_pass_the_exact_standard(impl, which, run):
    result = run("check", CASES, "--impl", impl, "--standard", "exact", "--filter", which)
    assert result.exit_code == 0, result.output
    assert " 0 failed, 0 skipped" in result.output


def test_committed_dumps_are_cases_and_results(run):
    """64 cases with their inputs and goldens, as `lngrad golden` wrote them; the goldens pass as somebody's dumps."""
    result = run("check", CASES / "dumps", "--standard", "exact")
    assert result.exit_code == 0, result.output
    assert "64 passed, 0 failed, 0 skipped" in result.output


TORCH = """
import numpy as np
import torch
from lngrad.testing import numpy_dtype

BITS = numpy_dtype("bfloat16")

def kernel(dy, x, mean, rstd, gamma):
    torch.set_num_threads(THREADS)
    dy, x, gamma = (torch.from_numpy(np.array(a).view(np.int16)).view(torch.bfloat16) for a in (dy, x, gamma))
    mean, rstd = (torch.from_numpy(np.array(a, np.float32)).to(x.dtype) for a in (mean, rstd))
    ask = torch.ops.aten.native_layer_norm_backward
    grads = ask(dy, x, gamma.shape, mean, rstd, gamma, torch.zeros_like(gamma), [True] * 3)
    return tuple(g.contiguous().view(torch.int16).numpy().view(BITS) for g in grads)
"""


@pytest.mark.parametrize("threads", [1, 5, *(pytest.param(threads, marks=pytest.mark.slow) for threads in (2, 12))])
def test_torch_s_column_sums_in_16_bits_are_named(run, threads, bench):
    """torch 2.13 keeps them so on a CPU, in a part a thread; one that does not has nothing to be named."""
    pytest.importorskip("torch")
    (bench / "somebody.py").write_text(TORCH.replace("THREADS", str(threads)))
    cases = (CASES / "lngrad.yaml", "--filter", "column sums in bfloat16")
    result = run("check", *cases, "--impl", "somebody:kernel", "--jobs", 1)
    if result.exit_code == 1:
        assert f"bfloat16 sums{f' in {threads} parts' * (threads > 1)}:" in result.output, result.output


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (apt-get install chromium)")
def test_the_report_works_in_a_browser(bench, run):
    run(
        "check",
        "cases.yaml",
        "--impl",
        "somebody:kernel",
        "--filter",
        "*[!g]",
        "--report",
        "r.html",
    )
    page = (bench / "r.html").read_text("utf-8")
    probe = """<script>
      search.value = "wrong"; filter();
      const left = rows.filter(r => !r.hidden).length;
      search.value = ""; filter(); document.querySelectorAll("#cases th button")[1].click();
      const first = document.querySelector("#cases tbody tr").cells[1].textContent.split("\\n")[0].trim();
      const fits = document.documentElement.scrollWidth <= innerWidth;
      document.title = `left ${left}, sorted by name from ${first.slice(0, 9)}, wide ${fits}`;
    </script></body>"""
    (bench / "probe.html").write_text(page.replace("</body>", probe), "utf-8")
    for size in ("1280,900", "500,900"):
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={bench}/profile",
                   f"--window-size={size}", "--dump-dom", f"file://{bench}/probe.html"]  # fmt: skip
        dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
        title = re.search("<title>(.*?)</title>", dom)
        assert title is not None
        assert title[1] == 'left 1, sorted by name from &lt;b&gt;&amp;"wron, wide true'


def test_ctrl_c_keeps_what_is_done(bench):
    program = "from lngrad.cli.commands import app; app()"
    command = [sys.executable, "-c", program, "check", "cases.yaml", "--impl", "somebody:kernel", "--jobs", "1",
               "--filter", "*[gn]*", "--json", "r.jsonl"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        journal = bench / "r.jsonl"
        while process.poll() is None and not (journal.exists() and journal.read_text("utf-8").count("\n") == 1):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    (digest,) = re.findall(
        r"interrupted after 1 of 3 cases; --json r.jsonl --resume (\w{16}) goes on", " ".join(errors.split())
    )
    assert statuses(journal) == {"good": "passed"}
    words = [
        "check",
        "cases.yaml",
        "--impl",
        "somebody:kernel",
        "--filter",
        "good",
        "--json",
        "r.jsonl",
        "--resume",
        digest,
    ]
    goes_on = CliRunner().invoke(app, words)
    assert (goes_on.exit_code, "not judged" in goes_on.output) == (0, False), goes_on.output
    journal.write_text(journal.read_text("utf-8").replace("passed", "failed"), "utf-8")
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 2
    assert f"with digest {digest}, got " in " ".join(refused.output.split())
