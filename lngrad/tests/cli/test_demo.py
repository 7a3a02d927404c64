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
    shapes = (64, demo.HIDDEN), (demo.HIDDEN,), (demo.HIDDEN,), (demo.HIDDEN, 10)
    parameters = [0.2 * rng.standard_normal(shape) + (len(shape) == 1) for shape in shapes]
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
    losses, accuracies, _ = training
    assert accuracies[-1] > 0.93
    assert losses[-1] < 0.2 * losses[0]
    assert demo.train(range(3), seed=1)[0] == losses
    assert demo.train(range(1), seed=2)[0][0] != losses[0]


@pytest.mark.parametrize("dtype", demo.DTYPES)
def test_checks_agree_with_the_comparator(training, dtype):
    layer = training[2]
    assert 0.5 <= np.abs(layer[0]).max() < 1
    assert layer[1].shape == (1348, 128)
    found = demo.errors_of(dtype, *layer)
    dy, x, gamma, beta = (array.astype(DTYPES[dtype]) for array in layer)
    _, mean, rstd = lngrad.layer_norm(x, gamma, beta)
    grads = lngrad.layer_norm_backward(dy, x, mean, rstd, gamma)
    assert found["lngrad"].size == x.size + 2 * gamma.size
    assert found["lngrad"].max() == check_grads(grads, Inputs(dy, x, mean, rstd, gamma, beta, 1)) <= 1


def test_nothing_is_compiled_after_what_the_bar_waits_for():
    """In a process of its own: the bar that says "compiling" is the only one that waits for a compiler."""
    program = """
from lngrad.cli import demo
from lngrad.cpu import entries
for dtype in demo.DTYPES:
    for name in demo.KERNELS:
        entries.kernel_address(name, dtype, "float32")
ready = set(entries._addresses)
layer = demo.train(range(1), seed=0)[2]
for dtype in demo.DTYPES:
    demo.errors_of(dtype, *layer)
print(len(ready) > 0, *set(entries._addresses) - ready - set(entries.ENTRIES))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout == "True\n", result.stderr


def test_what_is_kept_is_not_compiled_again(monkeypatch):
    """Programs compile what is missing, so many kernels each; none where nothing can be kept or need be."""
    from lngrad.cpu import entries

    kernels = [("rows", "float32", "float32"), ("join", "", ""), ("widen", "float16", "float32")]
    monkeypatch.setattr(entries.prebuilt, "why_not", lambda: "none")
    monkeypatch.setattr(entries.cache, "why_not", lambda: None)
    monkeypatch.setattr(entries, "_load", lambda kernel, name: 1 if kernel == "join" else None)
    asked: list[tuple[str, str, str]] = []
    monkeypatch.setattr(entries, "kernel_address", lambda *item: asked.append(item))
    for each, programs in (1, 2), (2, 1):
        asked.clear()
        found = entries.programs_for(kernels, each)
        assert len(found) == programs
        for item in found:
            exec(item)  # noqa: S102  # our own program
        assert asked == [kernels[0], kernels[2]]
    for module, reason in (entries.cache, "no folder"), (entries.prebuilt, None):
        monkeypatch.setattr(module, "why_not", lambda reason=reason: reason)
        assert entries.programs_for(kernels) == []


def test_a_row_of_bars():
    assert demo.drawn([0, 1, 2, 4]) == "▁▂▄█"


@pytest.mark.parametrize(("name", "value"), [("PASS_ACCURACY", 1.01), ("errors_of", None)])
def test_a_failed_demonstration_ends_with_1(name, value, tmp_path, monkeypatch, capsys):
    """One that reads too few images, and one with an error above the tolerance."""
    wrong = {"lngrad": np.array([0.5, 1.01])}
    monkeypatch.setattr(demo, name, value or (lambda dtype, *layer: wrong))
    monkeypatch.setattr(demo, "DTYPES", ("float32",))
    with pytest.raises(typer.Exit) as ended:
        demo.demo(output=tmp_path / "new" / "folder", epochs=1 if value else 8, seed=0)
    assert ended.value.exit_code == 1
    text_of_output = capsys.readouterr()
    assert "lngrad: the demonstration failed; see above" in text_of_output.err
    results = json.loads((tmp_path / "new" / "folder" / "results.json").read_text())
    worst = results["max_error_in_tolerances"]["float32"]
    assert all(f"{error:.2f}" in text_of_output.out for error in worst.values())
    assert ("torch is not installed" in text_of_output.out) == ("torch" not in worst)
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
    assert "Compiling, once per machine" in result.stderr
    assert "lngrad check --impl" in result.stdout.partition("\nNext:\n")[2]
    assert {entry.name for entry in (tmp_path / "lngrad-demo").iterdir()} == {"results.json"}
