"""Graphs in C++: the results of Python's graph ops, bit by bit, and a text for whatever is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from building import EXAMPLES, build, needs_cxx, run
from test_headers import compiles

from lngrad.support.dtypes import numpy_dtype
from lngrad.typing import Array
from lngrad_ascend import graph, soc
from lngrad_ascend.sdk import Settings, write_toolkit
from lngrad_ascend.sdk.graph_engine import OPS, _infer, operator_headers
from lngrad_ascend.sdk.toolkit import graph_headers

pytestmark = needs_cxx
TYPES = {"float32": 0, "float16": 1, "bfloat16": 27}


@pytest.fixture(scope="module")
def on_950(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toolkit for the product that has LayerNormGrad."""
    folder = tmp_path_factory.mktemp("graph") / "toolkit"
    write_toolkit(folder, Settings(soc="Ascend950"), flags=["-Werror"])
    return folder


@pytest.fixture(scope="module")
def program(on_950: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Path(__file__).parent / "programs" / "graph.cpp"
    return build(on_950, source, tmp_path_factory.mktemp("program"))


def arrays(dtype: str, rng: np.random.Generator) -> list[Array]:
    """Return dy, x, gamma, rstd, mean."""
    shapes = {"dy": (2, 3, 4), "x": (2, 3, 4), "gamma": (4,), "rstd": (2, 3, 1), "mean": (2, 3, 1)}
    kinds = [numpy_dtype(dtype)] * 3 + [np.dtype("float32")] * 2
    return [rng.uniform(0.5, 2, shape).astype(kind) for shape, kind in zip(shapes.values(), kinds, strict=True)]


@pytest.mark.parametrize("mask", [(True, True, True), (True, False, True)])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_graph_gives_what_python_gives(dtype: str, mask: tuple[bool, ...], program: Path, tmp_path: Path) -> None:
    dy, x, gamma, rstd, mean = inputs = arrays(dtype, np.random.default_rng(len(dtype)))
    (tmp_path / "in").write_bytes(b"".join(array.tobytes() for array in inputs))
    done = run(program, "run" if all(mask) else "mask", str(TYPES[dtype]), str(tmp_path / "in"), str(tmp_path / "out"))
    with soc.use("Ascend950"):
        expected = graph.LayerNormGradV3(dy, x, rstd, mean, gamma, output_mask=mask)
    facts = [f"{TYPES[dtype]} {' '.join(map(str, array.shape))}" if array is not None else "0 0" for array in expected]
    assert (done.returncode, done.stdout.splitlines()) == (0, facts), done.stderr
    assert (tmp_path / "out").read_bytes() == b"".join(array.tobytes() for array in expected if array is not None)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ("mystery", "50331649 what: expected an operator that is here (AddLayerNorm, "),
        ("missing", "50331649 grad: expected the input x (set_input_x), got none"),
        ("declared", "50331649 dy: expected the tensor as declared, 0 [-1, 7], got 0 [2, 3, 4]"),
        ("bytes", "50331649 dy: expected 96 bytes, got 8"),
        ("attribute", "50331649 grad: expected attributes output_mask, got epsilon"),
        ("mask2", "50331649 grad: output_mask: expected 3 booleans for pd_x, pd_gamma, pd_beta, got 1"),
        ("infer", "50331649 grad: gamma: expected the last dimensions of dy, (4,), got (5,)"),
        ("output", "50331649 grad: dy: expected one of y that is wanted, got output 3"),
        ("cycle", "50331649 graph: expected a graph without cycles, got one through grad"),
        ("fewer", "50331649 graph: expected 4 inputs (SetInputs), got 3"),
        ("number", "50331649 RunGraph: expected the number of a graph that was added, got 8"),
        ("twice", "50331649 AddGraph: expected a new number, got 7"),
        ("start", "4294967295 AddGraph: expected GEInitialize before it"),
    ],
)
def test_what_is_wrong_has_a_status_and_a_text(wrong: str, text: str, program: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"".join(array.tobytes() for array in arrays("float32", np.random.default_rng(0))))
    done = run(program, wrong, "0", str(tmp_path / "in"), str(tmp_path / "out"))
    assert (done.returncode, done.stdout[: len(text)], done.stderr) == (1, text, "")


@pytest.mark.parametrize("wanted", [True, False])
def test_an_output_that_attributes_leave_out_is_not_wanted(wanted: bool) -> None:
    shapes = {"x1": [2, 16], "x2": [2, 16], "gamma": [16], "beta": [16]}
    nodes = [{"op": "Data", "name": name, "outputs": ["y"], "declared": (0, shape)} for name, shape in shapes.items()]
    norm = {"op": "AddLayerNorm", "name": "norm", "outputs": ["y", "mean", "rstd", "x"]}
    norm |= {"inputs": {name: (place, "y") for place, name in enumerate(shapes)}}
    norm |= {"attributes": {"additional_output": True} if wanted else {}}
    rows = ((2, 1), "float32")
    assert _infer([*nodes, norm])[-1] == [((2, 16), "float32"), rows, rows, ((2, 16), "float32") if wanted else None]


def test_the_example(on_950: Path, tmp_path: Path) -> None:
    done = run(build(on_950, EXAMPLES / "cpp" / "graph_layer_norm.cpp", tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", graph_headers())
def test_a_header_alone_is_cxx(path: str, on_950: Path) -> None:
    compiles("c++", "c++", "c++17", f'#include "{path}"\n#include "{path}"\n', on_950)


def test_every_graph_op_has_a_prototype() -> None:
    texts = "".join(operator_headers().values())
    assert (
        {name for name in graph.__all__ if f"REG_OP({name})" in texts} == set(OPS) >= {"LayerNormGrad", "AddLayerNorm"}
    )
