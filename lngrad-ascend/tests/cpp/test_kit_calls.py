"""Calls of the Ascend C kit's examples that have no row of a table: by kernels of one program, with its results."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from lngrad_ascend.sdk import Settings
from lngrad_ascend.sdk.program import run_program

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")

KIT = Path(__file__).parent / "programs" / "kit"
EXAMPLES = (
    "tiling",
    "constants",
    "scalar_atomics",
    "group_barrier",
    "slices_and_the_rest_of_the_buffer",
    "control_bits",
)
EXAMPLES += ("dequantization",)
LOCKED, UNLOCKED = "Mutex::Lock<PIPE_V>(id)", "Mutex::Unlock<PIPE_V>(id)"
MUTEXES = {  # LOCK and UNLOCK of mutex.asc
    "locked": (LOCKED, UNLOCKED),
    "unlocked": (UNLOCKED, UNLOCKED),
    "locked twice": (f"{LOCKED}; {LOCKED}", UNLOCKED),
    "not locked": ("", ""),
}
MAIN = r"""
int main(int, char** words)
{
    aclrtSetDevice(0);
    aclrtStream stream = nullptr;
    aclrtCreateStream(&stream);
    if (words[1]) std::freopen(words[1], "w", stdout);
"""


def program(name, **macros):
    text = (KIT / f"{name}.asc").read_text().replace('#include "kit.h"', "")
    before, after = (
        "".join(f"#{line}\n" for line in lines)
        for lines in (
            [f"define {macro} {value}" for macro, value in macros.items()],
            [f"undef {macro}" for macro in macros],
        )
    )
    return before + text + after


def joined(texts):
    """All in one file, for a compiler takes a second: each in a namespace, and a main() that runs them."""
    spaces = [f"namespace program{n} {{\n{text}\n}}\n" for n, text in enumerate(texts)]
    calls = [f'std::printf("\\f%d\\n", program{n}::run(stream));\n' for n in range(len(spaces))]
    return f"{(KIT / 'kit.h').read_text()}{''.join(spaces)}{MAIN}{''.join(calls)}}}\n"


def ends(programs, folder, soc="Ascend910B1"):
    """What run() of each program returns and prints, in one process."""
    source, output = folder / "program.asc", folder / "printed.txt"
    source.write_text(joined(programs.values()))
    assert run_program(source, [str(output)], None, Settings(soc=soc)) == 0
    *printed, _ = re.split(r"\f(\d)\n", output.read_text())
    return dict(zip(programs, zip(map(int, printed[1::2]), printed[::2], strict=True), strict=True))


@pytest.fixture(scope="module")
def on_910b(tmp_path_factory):
    return ends({name: program(name) for name in (*EXAMPLES, "mutex")}, tmp_path_factory.mktemp("kit"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_the_kits_examples_call(name, on_910b):
    assert on_910b[name] == (0, "")


def test_a_mutex_orders_pipes_and_its_misuse_is_found(on_910b, tmp_path):
    variants = {name: program("mutex", LOCK=lock, UNLOCK=unlock) for name, (lock, unlock) in MUTEXES.items()}
    on_950 = ends(variants, tmp_path, "Ascend950")
    assert on_950["locked"] == (0, "")
    for (code, printed), text in (
        (on_910b["mutex"], "Mutex::Lock: only 950 has it"),
        (on_950["locked twice"], "the mutex is locked; a device would wait for ever"),
        (on_950["not locked"], "RaceFault"),
        (on_950["unlocked"], "Mutex::Unlock(0): the mutex is not locked"),
    ):
        assert code == 2
        assert text in printed


def test_remarks_name_the_line_and_are_printed_where_asked(tmp_path, capfd, monkeypatch):
    remark = {"remark": program("remark")}
    line = joined(remark.values()).partition("Duplicate")[0].count("\n") + 1
    assert ends(remark, tmp_path) == {"remark": (0, "")}
    assert "remark" not in capfd.readouterr().err
    monkeypatch.setenv("LNGRAD_KERNEL", "remarks=on")
    assert ends(remark, tmp_path) == {"remark": (0, "")}
    (printed,) = capfd.readouterr().err.splitlines()
    assert printed.startswith(f"lngrad: remark: program.asc:{line}: Duplicate: dst ")
