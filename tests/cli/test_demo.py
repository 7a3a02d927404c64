"""The demonstration: its network's gradients are right, it learns, and what it reports is what it found."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import typer

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")


import lngrad
from lngrad.cli import demo
from lngrad.support.dtypes import DTYPES
from lngrad.testing import Inputs, check_grads


@pytest.fixture(scope="module")
def training():
    return demo.train(range(3), seed=1)


def test_backward_is_the_slope_of_the_loss():
    """Every parameter array along a random direction, by central differences; the network is made float64 for them."""
    rng = np.random.default_rng(0)
    parameters = [p + 0.1 * rng.standard_normal(p.shape) for p in demo.new_parameters(rng)]
    images, labels = rng.standard_normal((20, 64)), rng.integers(0, 10, 20)
    gradients = demo.loss_and_gradients(parameters, images, labels)[1]

    def loss() -> float:
        return demo.loss_and_gradients(parameters, images, labels)[0]

    for parameter, gradient in zip(parameters, gradients, strict=True):
        assert gradient.shape == parameter.shape
        direction, step = rng.standard_normal(parameter.shape), 1e-5
        parameter += step * direction
        above = loss()
        parameter -= 2 * step * direction
        below = loss()
        parameter += step * direction
        slope = float((gradient * direction).sum())
        assert abs((above - below) / (2 * step) - slope) <= 1e-6 * (1 + abs(slope))


def test_it_learns_and_equal_seeds_learn_alike(training):
    assert training.accuracies[-1] > 0.93
    assert training.losses[-1] < 0.2 * training.losses[0]
    assert demo.train(range(3), seed=1).losses == training.losses
    assert demo.train(range(1), seed=2).losses[0] != training.losses[0]


@pytest.mark.parametrize("dtype", demo.DTYPES)
def test_checks_agree_with_the_comparator(training, dtype, monkeypatch):
    monkeypatch.setattr(demo, "ROUNDS", 1)
    dy, x, gamma, beta = training.layer
    assert 0.5 <= np.abs(dy).max() < 1
    assert x.shape == (1348, 128)
    found = demo.check_dtype(dtype, training.layer)
    assert found.best_us["lngrad"] > 0
    dy, x, gamma, beta = (array.astype(DTYPES[dtype]) for array in training.layer)
    _, mean, rstd = lngrad.layer_norm(x, gamma=gamma, beta=beta)
    grads = lngrad.layer_norm_backward(dy, x, mean, rstd, gamma)
    assert found.worst["lngrad"] == check_grads(grads, Inputs(dy, x, mean, rstd, gamma, beta, 1)) <= 1


def test_nothing_is_compiled_after_the_first_calls():
    """In a process of its own: the bar that says "compiling" is the only one that waits for a compiler."""
    program = """
from lngrad.cli import demo
from lngrad.cpu import entries
for call in demo.FIRST_CALLS:
    demo.first_call(*call)
ready = set(entries._addresses)
demo.ROUNDS, demo.CALLS = 1, 1
layer = demo.train(range(1), seed=0).layer
for dtype in demo.DTYPES:
    demo.check_dtype(dtype, layer)
print(len(ready) > 0, *set(entries._addresses) - ready)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout == "True\n", result.stderr


def test_a_busy_machine_prints_no_ratio(training, capsys):
    errors = {name: np.zeros(3) for name in ("lngrad", "torch")}
    demo.print_table([demo.Check("float32", errors, {"lngrad": 10.0, "torch": 8890.0}, busy=True)])
    said = capsys.readouterr().out
    assert "889.0" not in said
    assert "busy" in said
    assert "not measured" in said


def test_a_report_says_what_was_found(training, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "ROUNDS", 1)
    found = demo.check_dtype("float32", training.layer)
    alone = demo.Check("float32", {"lngrad": found.errors["lngrad"]}, {"lngrad": 1.0})
    for check in (found, alone):
        demo.print_table([check])
        said = capsys.readouterr().out
        assert f"{check.worst['lngrad']:.2f}" in said
        assert ("torch is not installed" in said) == ("torch" not in check.errors)
    demo.draw(tmp_path / "demo.png", training, [found])
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("name", "value"), [("PASS_ACCURACY", 1.01), ("check_dtype", None)])
def test_a_failed_demonstration_ends_with_1(name, value, tmp_path, monkeypatch, capsys):
    """One that reads too few images, and one with an error above the tolerance."""
    wrong = demo.Check("float32", {"lngrad": np.array([0.5, 1.01])}, {"lngrad": 1.0})
    monkeypatch.setattr(demo, name, value or (lambda dtype, layer: wrong))
    monkeypatch.setattr(demo, "ROUNDS", 1)
    monkeypatch.setattr(demo, "DTYPES", ("float32",))
    with pytest.raises(typer.Exit) as ended:
        demo.demo(output=tmp_path / "new" / "folder", epochs=1 if value else 8, seed=0)
    assert ended.value.exit_code == 1
    assert "lngrad: the demonstration failed; see above" in capsys.readouterr().err
    results = json.loads((tmp_path / "new" / "folder" / "results.json").read_text())
    assert results["passed"] is False
    assert (results["accuracy"] >= 0.95) == (value is None)


def test_the_command(tmp_path):
    """The example of its help, as a user runs it: from another folder, without torch."""
    (tmp_path / "torch.py").write_text("raise ImportError('this demonstration needs no torch')")
    program = "import importlib.util as u; real = u.find_spec; u.find_spec = lambda name, *a: None if name == 'torch' "
    program += "else real(name, *a)\nfrom lngrad.cli.main import main; main()"
    (example,) = re.findall(r"(?m)^ *Example: lngrad (.*)$", demo.demo.__doc__)
    command = [sys.executable, "-c", program, *example.split()]
    source = os.path.dirname(os.path.dirname(lngrad.__file__))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), source))}
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert result.returncode == 0, result.stderr
    assert "torch is not installed" in result.stdout
    assert "Test accuracy 9" in result.stdout
    assert "As RMSNorm: max error 0." in result.stdout
    assert "Compiling, once per machine" in result.stderr
    assert "lngrad check --impl" in result.stdout.partition("\nNext:\n")[2]
    assert {entry.name for entry in (tmp_path / "lngrad-demo").iterdir()} == {"demo.png", "results.json"}
