"""Write the case files of this folder: one table of shapes, dtypes, masks and ranges in every format.

    python cases/generate.py

The files are committed; this script is how they were made, and a test asserts that it still makes them.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

from lngrad_ascend.graph.layer_norm_grad import DTYPE_ROWS

# Leading dimensions | normalized ones: 1 to 8 dimensions, powers of two and their neighbours, tails of every tile.
SHAPES = (
    ((1,), (1,)),
    ((), (33,)),
    ((7,), (8,)),
    ((64,), (63,)),
    ((65,), (64,)),
    ((2, 3), (255,)),
    ((128,), (256,)),
    ((5, 13), (3, 21)),
    ((2, 2, 3), (2, 5, 7)),
    ((2, 1, 3), (4, 5)),
    ((1, 2, 1, 2, 1), (3, 7)),
    ((1, 2, 1, 3, 1, 2), (4, 5)),
    ((2, 1, 2, 1, 2, 1, 2), (31,)),
    ((300,), (16,)),
    ((33,), (1000,)),
    ((4,), (4097,)),
)
MASKS = ((True, True, True), (True, False, True), (False, True, True), (True, False, False), (False, False, True))
SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def table() -> list[dict]:
    """Every shape with at least four dtype rows; masks and ranges take turns."""
    cases = []
    for number, (lead, normalized) in enumerate(SHAPES):
        for step in range(5):
            dtype, gamma, parameter = DTYPE_ROWS[(number + step * 3) % len(DTYPE_ROWS)]
            mask = MASKS[(number + step) % len(MASKS)] if step else MASKS[0]
            name = f"{'x'.join(map(str, lead)) or '1'}_by_{'x'.join(map(str, normalized))}_{SHORT[dtype]}_{SHORT[gamma]}_{step}"
            cases.append(
                {"name": name, "lead": lead, "normalized": normalized, "dtype": dtype, "gamma": gamma,
                 "parameter": parameter, "mask": mask, "wide": step == 4}
            )  # fmt: skip
    return cases


def kernel_csv() -> str:
    """TTK's kernel mode: LayerNormGrad from the variance and LayerNormGradV3 from rstd in turn."""
    columns = [
        "testcase_name",
        "network_name",
        "op_name",
        "input_shapes",
        "input_dtypes",
        "input_formats",
        "output_shapes",
        "output_dtypes",
        "output_formats",
        "attributes",
        "input_data_ranges",
        "precision_tolerances",
        "absolute_precision",
        "is_enabled",
        "remark",
    ]
    lines = []
    for number, case in enumerate(table()):
        shape, rows = (*case["lead"], *case["normalized"]), (*case["lead"], *(1,) * len(case["normalized"]))
        v3 = number % 2 == 1
        low = 0.05 if v3 else 0.1
        wide = (-5, 5) if case["wide"] else (-3, 3)
        mask = str(list(case["mask"])).lower()
        lines.append(
            {
                "testcase_name": case["name"],
                "network_name": "lngrad",
                "op_name": "LayerNormGradV3" if v3 else "LayerNormGrad",
                "input_shapes": (shape, shape, rows, rows, case["normalized"]),
                "input_dtypes": (case["dtype"], case["dtype"], "float32", "float32", case["gamma"]),
                "input_formats": ("ND",) * 5,
                "output_shapes": (shape, case["normalized"], case["normalized"]),
                "output_dtypes": (case["dtype"], case["parameter"], case["parameter"]),
                "output_formats": ("ND",) * 3,
                "attributes": f'{{"output_mask": {mask}}}' if v3 else "{}",
                "input_data_ranges": (wide, wide, (low, 3), (-3, 3), (-3, 3)),
                "precision_tolerances": ((0.004, 0.004),),
                "absolute_precision": "1.00E-03",
                "is_enabled": True,
                "remark": "",
            }
        )
    return written(columns, lines)


def aclnn_csv() -> str:
    """TTK's aclnn mode."""
    columns = [
        "testcase_name",
        "api_name",
        "tensor_view_shapes",
        "tensor_dtypes",
        "tensor_formats",
        "attributes",
        "tensor_data_ranges",
        "is_enabled",
    ]
    lines = []
    for case in table():
        shape, rows = (*case["lead"], *case["normalized"]), (*case["lead"], *(1,) * len(case["normalized"]))
        R = case["normalized"]
        dtypes = (case["dtype"], case["dtype"], "float32", "float32", case["gamma"], case["gamma"], case["dtype"],
                  case["parameter"], case["parameter"])  # fmt: skip
        lines.append(
            {
                "testcase_name": case["name"],
                "api_name": "aclnnLayerNormBackward",
                "tensor_view_shapes": (shape, shape, rows, rows, R, R, shape, R, R),
                "tensor_dtypes": dtypes,
                "tensor_formats": ("ND",) * 9,
                "attributes": {"normalizedShape": list(R), "outputMask": list(case["mask"])},
                "tensor_data_ranges": ((-3, 3), None, (-3, 3), (0.05, 3), (-3, 3), None, None, None, None),
                "is_enabled": True,
            }
        )
    return written(columns, lines)


def written(columns: list[str], lines: list[dict]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def atk_json() -> str:
    cases = []
    for number, case in enumerate(table()):
        shape, rows = [*case["lead"], *case["normalized"]], [*case["lead"], *[1] * len(case["normalized"])]

        def tensor(name: str, dtype: str, sizes: list[int], low: float, high: float) -> dict:
            return {"name": name, "type": "tensor", "required": True, "dtype": SHORT[dtype], "shape": sizes,
                    "range_values": [low, high], "backward": False, "align_32B": False}  # fmt: skip

        def attributes(name: str, dtype: str, values: list) -> list:
            return [{"name": name, "type": "attrs", "dtype": dtype, "range_values": value} for value in values]

        cases.append(
            {
                "id": number,
                "name": case["name"],
                "aclnn_name": "LayerNormBackward",
                "api_type": "layer_norm_backward",
                "standard": {"acc": {"single_bm": {"type": "high_performance"}}, "perf": "not_key"},
                "inputs": [
                    tensor("gradOut", case["dtype"], shape, -3, 3),
                    tensor("input", case["dtype"], shape, -3, 3),
                    attributes("normalizedShape", "int", list(case["normalized"])),
                    tensor("mean", "float32", rows, -3, 3),
                    tensor("rstd", "float32", rows, 0.05, 3),
                    tensor("weightOptional", case["gamma"], list(case["normalized"]), -3, 3),
                    tensor("biasOptional", case["gamma"], list(case["normalized"]), -3, 3),
                    attributes("outputMask", "bool", list(case["mask"])),
                ],
            }
        )
    return json.dumps(cases, indent=1) + "\n"


SPECIAL = """\
  # No rows, no columns, no gamma; float64; statistics in 16 bits.
  - {name: no rows, shape: [0, 16]}
  - {name: no rows float16, shape: [3, 0, 16], dtype: float16}
  - {name: no columns, shape: [4, 0]}
  - {name: one element, shape: [1]}
  - {name: no gamma, shape: [40, 48], gamma: none}
  - {name: no gamma bfloat16, shape: [40, 48], gamma: none, dtype: bfloat16}
  - {name: float64, shape: [40, 65], dtype: float64}
  - {name: float64 two axes, shape: [9, 6, 7], normalized: 2, dtype: float64, gamma: none}
  - {name: statistics in float16, shape: [20, 32], dtype: float16, statistics: float16}
  - {name: statistics in bfloat16, shape: [20, 32], dtype: bfloat16, statistics: bfloat16}
  - {name: column sums in bfloat16, shape: [600, 32], dtype: bfloat16, statistics: bfloat16, ranges: {dy: 1}}
  - {name: column sums in float16, shape: [3000, 32], dtype: float16, statistics: float16, ranges: {dy: 1}}
  # Constants, and a mean far from zero.
  - {name: x constant, shape: [12, 24], ranges: {x: [1.5, 1.5]}}
  - {name: dy zero, shape: [12, 24], ranges: {dy: 0}}
  - {name: far from zero, shape: [64, 96], ranges: {x: [1000, 1001]}}
  - {name: mean is not the row's, shape: [16, 40], ranges: {mean: [2, 3], rstd: [4, 5]}}
  - {name: small variance, shape: [16, 40], given: variance, eps: 1.0e-5, ranges: {x: [-0.004, 0.004]}}
  - {name: variance and eps, shape: [16, 40], given: variance, eps: 1.0e-12}
  # The operator library's golden has this epsilon where x and the variance share a dtype, its tiling 1e-5 for 16 bits.
  - {name: epsilon of the golden, shape: [16, 40], dtype: float16, statistics: float16, given: variance, eps: 1.0e-12}
  # Special values: after low and high, forced on elements spread over the array.
  - {name: nan in dy, shape: [16, 24], ranges: {dy: [-2, 2, .nan]}}
  - {name: inf in dy, shape: [16, 24], ranges: {dy: [-2, 2, .inf]}}
  - {name: nan in x, shape: [16, 24], ranges: {x: [-2, 2, .nan], mean: [-1, 1], rstd: [0.5, 1]}}
  - {name: inf in gamma, shape: [16, 24], ranges: {gamma: [-2, 2, -.inf]}}
  - {name: nan in rstd, shape: [16, 24], ranges: {rstd: [0.5, 1, .nan], mean: [-1, 1]}}
  - {name: all masked off, shape: [8, 8], output_mask: [false, false, false]}
"""


def own_yaml() -> str:
    lines = [
        "# Written by cases/generate.py. mean and rstd are those of x unless a range says otherwise.",
        "lngrad: 1",
        "cases:",
    ]
    for case in table():
        shape = [*case["lead"], *case["normalized"]]
        line = f"name: {case['name']}, shape: {shape}, normalized: {len(case['normalized'])}, dtype: {case['dtype']}"
        line += f", gamma: {case['gamma']}, outputs: {{dgamma: {case['parameter']}, dbeta: {case['parameter']}}}"
        if case["mask"] != MASKS[0]:
            line += f", output_mask: {str(list(case['mask'])).lower()}"
        if case["wide"]:
            line += ", ranges: {x: [-5, 5], dy: [-5, 5]}"
        lines.append(f"  - {{{line}}}")
    return "\n".join(lines) + "\n" + SPECIAL


FILES = {"ttk_kernel.csv": kernel_csv, "ttk_aclnn.csv": aclnn_csv, "atk.json": atk_json, "lngrad.yaml": own_yaml}


def main() -> int:
    folder = Path(__file__).parent
    for name, write in FILES.items():
        (folder / name).write_text(write(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
