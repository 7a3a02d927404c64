"""The demonstration: its network's gradients are right, it learns, and what it reports is what it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import typer

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

import lngrad.cli.demo
from lngrad.cli import demo_checks as checks
from lngrad.cli import demo_report as report
from lngrad.cli.demo_digits import LayerNorm, Network, loss_and_gradient, train
from lngrad.testing import check_grads


@pytest.fixture(scope="module")
def training():
    return train(epochs=3, seed=1)


def test_backward_is_the_slope_of_the_loss():
    """Every parameter array along a random direction, by central differences; the network is made float64 for them."""
    rng = np.random.default_rng(0)
    network = Network(rng)
    for layer in network.layers:
        layer.parameters[:] = [p + 0.1 * rng.standard_normal(p.shape) for p in layer.parameters]
    images, labels = rng.standard_normal((20, 64)), rng.integers(0, 10, 20)

    def loss() -> float:
        return loss_and_gradient(network.forward(images), labels)[0]

    network.backward(loss_and_gradient(network.forward(images), labels)[1].astype(np.float64))
    for parameter, gradient in zip(network.parameters(), network.gradients(), strict=True):
        assert gradient.shape == parameter.shape
        direction, step = rng.standard_normal(parameter.shape), 1e-5
        parameter += step * direction
        above = loss()
        parameter -= 2 * step * direction
        below = loss()
        parameter += step * direction
        slope = float((gradient * direction).sum())
        # 1/len(labels) is float32's in the network, hence 1e-6 and not less.
        assert abs((above - below) / (2 * step) - slope) <= 1e-6 * (1 + abs(slope))


def test_it_learns_and_equal_seeds_learn_alike(training):
    assert training.accuracies[-1] > 0.93
    assert training.losses[-1] < 0.2 * training.losses[0]
    assert train(epochs=3, seed=1).losses == training.losses
    assert train(epochs=1, seed=2).losses[0] != training.losses[0]


def test_inputs_are_those_of_the_layers(training):
    layers = [layer for layer in training.network.layers if isinstance(layer, LayerNorm)]
    inputs = checks.layer_inputs(training)
    assert len(inputs) == len(layers) == 2
    for (dy, x, gamma, _), layer in zip(inputs, layers, strict=True):
        assert x is layer.x
        assert gamma is layer.parameters[0]
        assert len(x) == len(training.data.train_images)
        assert 0.5 <= np.abs(dy).max() < 1
        assert np.log2(np.abs(dy).max() / np.abs(layer.dy).max()) % 1 == 0


@pytest.mark.parametrize("dtype", checks.DTYPES)
def test_checks_agree_with_the_comparator(training, dtype, monkeypatch):
    monkeypatch.setattr(checks, "ROUNDS", 1)
    layers = checks.layer_inputs(training)
    found = checks.check_dtype(dtype, layers)
    assert found.passed
    assert found.lngrad.time_us > 0
    worst = 0.0
    for layer in layers:
        call, judged = checks._lngrad_call(*(array.astype(lngrad.core.arrays.DTYPES[dtype]) for array in layer))
        worst = max(worst, check_grads(call(), judged))
    assert found.lngrad.worst == worst


def test_nothing_is_compiled_after_the_first_calls():
    """In a process of its own: the bar that says "compiling" is the only one that waits for a compiler."""
    program = """
from lngrad.cli import demo_checks as checks
from lngrad.cli import demo_digits as digits
from lngrad.cpu import entries
for call in checks.FIRST_CALLS:
    call()
ready = set(entries._addresses)
checks.ROUNDS, checks.CALLS = 1, 1
layers = checks.layer_inputs(digits.train(epochs=1, seed=0))
for dtype in checks.DTYPES:
    checks.check_dtype(dtype, layers)
print(len(ready) > 0, *set(entries._addresses) - ready)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout == "True\n", result.stderr


def test_report(training, tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "ROUNDS", 1)
    found = [checks.check_dtype("float32", checks.layer_inputs(training))]
    for side in (found[0].torch, None):
        kept = [replace(found[0], torch=side)]
        results = report.summary(training, kept, seed=1)
        report.write_json(tmp_path / "results.json", results)
        assert json.loads((tmp_path / "results.json").read_text()) == results
        assert ("torch" in results["checks"][0]) == (side is not None)
        assert report.table(kept).row_count == 1
        report.draw(tmp_path / "demo.png", training, kept)
        assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert results["passed"] == (results["accuracy"] >= 0.95)

    wrong = [replace(found[0], lngrad=checks.Side(np.array([0.5, 1.01]), 1.0))]
    assert not report.summary(training, wrong, seed=1)["passed"]


def test_a_failed_demonstration_ends_with_1(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "PASS_ACCURACY", 1.01)
    monkeypatch.setattr(checks, "ROUNDS", 1)
    monkeypatch.setattr(checks, "DTYPES", ("float32",))
    with pytest.raises(typer.Exit) as ended:
        lngrad.cli.demo.demo(output=tmp_path / "new" / "folder", epochs=1, seed=0)
    assert ended.value.exit_code == 1
    assert "lngrad: the demonstration failed; see above" in capsys.readouterr().err
    assert json.loads((tmp_path / "new" / "folder" / "results.json").read_text())["passed"] is False


def test_the_command(tmp_path):
    """As a user runs it: from another folder, without torch."""
    (tmp_path / "torch.py").write_text("raise ImportError('this demonstration needs no torch')")
    program = "import importlib.util as u; real = u.find_spec; u.find_spec = lambda name, *a: None if name == 'torch' "
    program += "else real(name, *a)\nfrom lngrad.cli.main import main; main()"
    command = [sys.executable, "-c", program, "demo", "--epochs", "8"]
    source = os.path.dirname(os.path.dirname(lngrad.__file__))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), source))}
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert result.returncode == 0, result.stderr
    assert "torch is not installed" in result.stdout
    assert "Test accuracy 9" in result.stdout
    assert "Compiling, once per machine" in result.stderr
    assert "lngrad check --impl" in result.stdout.partition("\nNext:\n")[2]
    assert {entry.name for entry in (tmp_path / "lngrad-demo").iterdir()} == {"demo.png", "results.json"}
