"""Case files: what is read, and what a broken one is told; values are never evaluated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lngrad.check.case import SHIPPED, Source
from lngrad.check.formats import reading
from lngrad.check.formats.own import read_own
from lngrad.check.formats.reading import read_cases
from lngrad.check.formats.ttk_atk import LiteralError, parse_literal, read_atk, read_ttk
from lngrad.check.judge import Options, check_case
from lngrad.errors import FileFormatError

CASES = Path(__file__).parents[3] / "cases"
READERS = {"ttk_kernel.csv": read_ttk, "ttk_aclnn.csv": read_ttk, "atk.json": read_atk, "lngrad.yaml": read_own}
KERNEL = (CASES / "ttk_kernel.csv").read_text()


@pytest.mark.parametrize("name", READERS)
def test_our_own_files_have_sixty_cases_each_and_are_what_their_script_writes(name):
    text = (CASES / name).read_text("utf-8")
    cases = READERS[name](text, name)
    assert len(cases) >= 60
    assert {len(case.shape) for case in cases} >= set(range(1, 9))
    rows = {(case.dtype, case.gamma_dtype, case.output_dtypes["dgamma"]) for case in cases}
    assert len(rows) >= (5 if name == "atk.json" else 7)  # ATK does not say the dtypes of outputs
    scope: dict = {"__name__": "generate", "__file__": str(CASES / "generate.py")}
    exec(compile((CASES / "generate.py").read_text("utf-8"), "generate.py", "exec"), scope)  # noqa: S102  # our own script
    assert scope["FILES"][name]() == text


def test_a_kernel_mode_row_is_read_column_by_column():
    case = read_ttk(KERNEL, "f.csv")[1]
    assert (case.surface, case.third, case.output_mask) == ("graph_v3", "rstd", (True, False, True))
    assert case.ranges["statistic"] == (0.05, 3.0)
    assert (case.tolerances, case.atol) == ((0.004, 0.004), 0.001)
    assert case.others["network_name"] == "lngrad"  # unknown columns are kept


def test_the_graph_ops_hidden_epsilon_follows_the_dtype():
    found = {case.dtype: case.eps for case in read_ttk(KERNEL, "f.csv") if case.third == "variance"}
    assert found == {"float32": 1e-12, "float16": 1e-5, "bfloat16": 1e-5}


def test_all_formats_say_the_same_of_the_same_case():
    cases = [
        {difference.name: difference for difference in reader((CASES / name).read_text(), name)}
        for name, reader in READERS.items()
    ]
    for name, first in cases[1].items():
        for others in cases[2:]:
            other = others[name]
            assert (first.shape, first.normalized, first.dtype, first.gamma_dtype, first.output_mask) == (
                other.shape, other.normalized, other.dtype, other.gamma_dtype, other.output_mask,
            )  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("testcase_name,", "name,", r"f\.csv:1: expected a TTK header with testcase_name"),
        ("op_name", "testcase_name", r"f\.csv:1: expected every column once"),
        ('"((1, 1), (1, 1)', '"((1, 1, (1, 1)', r"f\.csv:2: column 4 \(input_shapes\), character \d+: "),
        (
            '"((1, 1), (1, 1)',
            "\"(open('x'), (1, 1)",
            r"column 4 \(input_shapes\), character 2: expected a literal, got the name 'open'",
        ),
        ('"((1, 1), (1, 1)', '"((1, -1), (1, 1)', r"column 4 \(input_shapes\): expected a shape of integers from 0"),
        ('"((1, 1), (1, 1)', '"((2, 1), (1, 1)', r"dy: expected shape and dtype of x"),
        (
            "('float32', 'float32'",
            "('int8', 'int8'",
            r"column 5 \(input_dtypes\): expected float16, bfloat16, float32 or float64",
        ),
        ("((-3, 3), (-3, 3)", "((3, -3), (-3, 3)", r"range of dy: expected low <= high"),
        ("LayerNormGrad,", "Softmax,", r"op_name: expected LayerNormGrad or LayerNormGradV3, got 'Softmax'"),
        ("(0.004, 0.004)", "(0.004,)", r"column 12 \(precision_tolerances\): expected a sequence of 2 values"),
    ],
)
def test_a_broken_csv_is_told_file_line_and_column(old, new, text):
    assert old in KERNEL
    with pytest.raises(FileFormatError, match=text):
        read_ttk(KERNEL.replace(old, new, 1), "f.csv")


OF_GATED = "norm: gated_rms_norm, outputs: {dgamma: float32, dgate: bfloat16}"
GATED = f"lngrad: 1\ncases: [{{shape: [2, 3], dtype: bfloat16, {OF_GATED}}}]"


def of_backward(case):
    return {name: case.output_dtypes[name] for name in case.operator.outputs}


def test_results_of_a_gated_norm_have_their_own_names():
    assert of_backward(read_own(GATED, "f.yaml")[0]) == {"dx": "bfloat16", "dgamma": "float32", "dgate": "bfloat16"}
    wider = read_own(GATED.replace("dgate: bfloat16", "dx: float32"), "f.yaml")[0]
    assert of_backward(wider) == {"dx": "float32", "dgamma": "float32", "dgate": "float32"}
    apart = read_own(GATED.replace("dgate: bfloat16", "dgate: float32"), "f.yaml")[0]
    assert of_backward(apart) == {"dx": "bfloat16", "dgamma": "float32", "dgate": "float32"}
    assert check_case(apart, Options(impl="numpy_cpu")).reason == "dgate in float32, x in bfloat16"


@pytest.mark.parametrize(
    ("yaml", "text"),
    [
        ("", r"f\.yaml:1: expected cases, got an empty file"),
        ("cases: []", r"expected 'lngrad: 1'"),
        ("lngrad: 1", r"expected the key 'cases'"),
        ("lngrad: 1\ncases:\n  - {shape: [2, 3], shapes: 1}", r"f\.yaml:3:\d+: shapes: expected one of name, shape"),
        ("lngrad: 1\ncases:\n  - {dtype: float32}", r"f\.yaml:3:5: expected a shape"),
        ("lngrad: 1\ncases:\n  - {shape: [2, 3], dtype: int8}", r"f\.yaml:3:\d+: dtype: expected float16"),
        ("lngrad: 1\ncases:\n  - {shape: [2, 3], normalized: 3}", r"how many of x's last dimensions"),
        ("lngrad: 1\ncases:\n  - {shape: [2, 3], eps: .nan}", r"eps: expected a number from 0"),
        ("lngrad: 1\ncases: [&a {shape: [1]}, *a]", r"f\.yaml:2:9: expected plain values: no anchors"),
        ("lngrad: 1\ncases:\n  - !!python/object/apply:os.system [ls]", r"f\.yaml:3:5: expected plain values"),
        ("lngrad: 1\ncases: [{shape: [1]", r"f\.yaml:2:\d+: "),
        (f"lngrad: 1\ncases:\n  - {'[' * 40000}", r"f\.yaml:3:\d+: expected at most 8 levels"),
        ("lngrad: 1\nlngrad: 1\ncases: []", r"expected every key once"),
        ("lngrad: 1\ncases:\n  - {shape: [2, 3], ranges: {rstd: [1]}}", r"\(low, high\) and at most"),
        (GATED.replace("dgate", "dbeta"), r"outputs: expected dx, dgamma, dgate, got 'dbeta'$"),
        (GATED.replace("gated_", ""), r"outputs: expected dx, dgamma, got 'dgate'$"),
    ],
)
def test_a_broken_yaml_is_told_line_and_column(yaml, text):
    with pytest.raises(FileFormatError, match=text):
        read_own(yaml, "f.yaml")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda cases: cases[0].pop("inputs"), r"f\.json: case 1: expected the key 'inputs'"),
        (lambda cases: cases[1].update(aclnn_name="Softmax"), r"case 2, aclnn_name: expected LayerNormBackward"),
        (lambda cases: cases[0]["inputs"].pop(0), r"expected tensors for dy, x, mean and rstd, got none for dy"),
        (lambda cases: cases[0]["inputs"][0].update(dtype="int4"), r"case 1, inputs, dtype: expected float16"),
        (lambda cases: cases[0]["inputs"][0].update(name="foo"), r"name: expected gradOut, input"),
    ],
)
def test_a_broken_atk_file_is_told_case_and_key(change, text):
    cases = json.loads((CASES / "atk.json").read_text())
    change(cases)
    with pytest.raises(FileFormatError, match=text):
        read_atk(json.dumps(cases), "f.json")


def test_broken_json_is_told_line_and_column():
    with pytest.raises(FileFormatError, match=r"f\.json: line 2, column 1: "):
        read_atk("[\n", "f.json")


def test_literals_are_python_s_and_json_s():
    text = "{'a': (1, -2.5e3, [None, true], (3)), \"b\": -inf, 'c': (1,), 'd': ()}"
    assert parse_literal(text) == {"a": (1, -2500.0, (None, True), 3), "b": float("-inf"), "c": (1,), "d": ()}


@pytest.mark.parametrize("text", ["__import__('os')", "a.b", "1+1", "(" * 100, "1" * 100, "'a", "{1: 2}", "(1 2)", ""])
def test_what_is_no_literal_is_refused(text):
    with pytest.raises(LiteralError):
        parse_literal(text)


def test_a_folder_of_dumps_needs_no_manifest(tmp_path):
    place = tmp_path / "one"
    place.mkdir()
    arrays = (
        np.ones((3, 4), np.float32),
        np.ones((3, 4), np.float32),
        np.ones(3, np.float32),
        np.ones(3, np.float32),
        np.ones(4, np.float32),
    )
    for index, array in enumerate(arrays):
        (place / f"input_{index}_float32__shape_{'x'.join(map(str, array.shape))}.bin").write_bytes(array.tobytes())
    (case,) = read_cases([tmp_path], 1 << 20)
    assert (case.name, case.shape, case.gamma_dtype) == ("one", (3, 4), "float32")


@pytest.mark.parametrize("path", ["../secret.bin", "/etc/hostname", "one/../../secret.bin"])
def test_a_manifest_s_paths_stay_in_its_folder(tmp_path, path, run):
    (tmp_path / "secret.bin").write_bytes(b"\0" * 64)
    inner = tmp_path / "dumps"
    inner.mkdir()
    tensor = {"file": path, "dtype": "float32", "shape": [4, 4]}
    rows = {**tensor, "shape": [4, 1]}
    manifest = {"lngrad": 1, "cases": [{"inputs": {"dy": tensor, "x": tensor, "mean": rows, "statistic": rows}}]}
    (inner / "manifest.json").write_text(json.dumps(manifest))
    result = run("check", inner)
    assert result.exit_code == 1
    assert "expected a path inside the folder" in " ".join(result.output.split())


def test_the_name_of_a_case_can_not_forge_a_line():
    (case,) = read_own('lngrad: 1\ncases: [{shape: [3, 8], name: "evil\\e[31m\\nPASS: 99 passed"}]', "f.yaml")
    assert case.name == "evil\\x1b[31m\\nPASS: 99 passed"


def test_without_pyyaml_the_error_says_what_to_install(monkeypatch):
    from lngrad.check.formats import own

    monkeypatch.setattr(own, "find_spec", lambda name: None)
    with pytest.raises(FileFormatError, match=r"default.yaml: needs pyyaml to be read: pip install 'lngrad\[check\]'"):
        own.read_own("lngrad: 1", "default.yaml")


def test_the_cases_that_come_with_lngrad_need_no_yaml():
    """Read without PyYAML they are what PyYAML reads."""
    for name in SHIPPED:
        path = Path(reading.__file__).with_name(f"{name.split()[0]}.yaml")
        found = [replace(item, source=Source(str(path))) for item in reading.shipped(name)]
        read = [replace(read_cas, source=Source(str(path))) for read_cas in read_cases([path], 1 << 20)]
        assert repr(found) == repr(read)  # some have a NaN
        assert len(found) == path.read_text().count("{name:")
