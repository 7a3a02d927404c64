"""Signals while XLA runs: a call ends with its results or with an error, never with neither; repeated calls run no Python."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy

import lngrad  # noqa: E402
from lngrad import jax as lngrad_jax  # noqa: E402
from lngrad.jax import calls  # noqa: E402
from lngrad.testing import Case, check_same_bits, make_inputs  # noqa: E402


@pytest.fixture(params=[KeyboardInterrupt, ValueError])
def interrupted(request, monkeypatch):
    """Python's part of the next calls ends ahead of anything that it could catch, as a signal's handler makes it."""

    def raises(frame):
        raise request.param

    calls.handler.forget()
    monkeypatch.setattr(sys, "unraisablehook", lambda reason: None)
    monkeypatch.setattr(calls.handler, "answer", raises)


def test_a_call_whose_python_was_interrupted_is_an_error(interrupted):
    with pytest.raises(Exception, match="lngrad: interrupted"):
        jax.block_until_ready(jax.jit(lngrad_jax.layer_norm)(jnp.ones((7, 12))))


@pytest.mark.parametrize("shape", [(6, 40), (300, 700), (1500, 1024)], ids=str)
def test_a_call_that_is_known_runs_no_python(shape, monkeypatch):
    """Forward and backward, small and shared by threads: the bits of the core, and the host is asked once."""
    inputs = make_inputs(Case(shape[:1], shape[1:]), "float32")
    asked = []
    answer = calls.handler.answer
    monkeypatch.setattr(calls.handler, "answer", lambda frame: asked.append(frame) or answer(frame))
    calls.handler.forget()
    expected = lngrad.layer_norm(inputs.x, inputs.gamma, inputs.beta)
    gradients = lngrad.layer_norm_backward(inputs.dy, inputs.x, expected.mean, expected.rstd, inputs.gamma)
    step = jax.jit(
        lambda dy, *arrays: (lngrad_jax.layer_norm(*arrays), *jax.vjp(lngrad_jax.layer_norm, *arrays)[1](dy))
    )
    for turn in range(3):
        y, *got = map(np.asarray, step(inputs.dy, inputs.x, inputs.gamma, inputs.beta))
        check_same_bits((y,), expected[:1])
        check_same_bits(tuple(got), tuple(gradients))
        if turn == 0:
            count = len(asked)
    assert len(asked) == count > 0
    before = calls.handler.progress()
    assert before[0] == before[1]


SIGNALS = """
import random, signal
import jax, jax.numpy as jnp, numpy as np
import lngrad.jax

x = jnp.asarray(np.random.default_rng(0).standard_normal((2000, 256), dtype=np.float32))
programs = [jax.jit(lngrad.jax.rms_norm), jax.jit(jax.grad(lambda a: (lngrad.jax.layer_norm(a) ** 2).sum()))]
wanted = [np.asarray(program(x)) for program in programs]
armed, interrupts, wrong = False, 0, 0


def interrupt(*_):
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt


signal.signal(signal.SIGALRM, interrupt)
for turn in range(300):
    if turn % 20 == 0:
        lngrad.jax.calls.handler.forget()  # and Python takes part again
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 3e-3))
        got = [np.asarray(program(x)) for program in programs]
        armed = False
        wrong += any(a.tobytes() != b.tobytes() for a, b in zip(got, wanted))
    except KeyboardInterrupt:
        interrupts += 1
    except Exception as reason:
        assert "interrupt" in str(reason).lower(), reason
        interrupts += 1
    armed = False
assert [np.asarray(program(x)).tobytes() for program in programs] == [array.tobytes() for array in wanted]
print(interrupts > 0, wrong)
"""


def test_interrupts_leave_no_wrong_result():
    done = subprocess.run([sys.executable, "-c", SIGNALS], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True 0\n"
