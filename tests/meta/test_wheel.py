"""The sdist and the wheel of each package hold all that it needs: built, installed outside the checkout, and used from there.

The environment is empty but for lngrad's dependencies, which are lent by path, so that nothing is downloaded: a path file adds
the folder of this Python's packages, and an editable lngrad in that folder is not seen through it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.parser import HeaderParser
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

import lngrad as lngrad_itself
import lngrad_ascend

ROOT = Path(__file__).parents[2]
PACKAGES = {"lngrad": "lngrad", "lngrad-ascend": "lngrad_ascend"}  # each with its import's name

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("build", "hatchling")), reason="needs build and hatchling"
)


def run(*command, cwd, environment=None):
    result = subprocess.run([str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with the sdist of each package, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    for package in PACKAGES:
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT / package, cwd=folder)
    return folder


def wheel_of(folder, package="lngrad"):
    (wheel,) = folder.glob(f"{PACKAGES[package]}-*.whl")
    return wheel


@pytest.fixture(scope="module")
def lngrad(built, tmp_path_factory):
    """Runs the installed `lngrad` in a folder of its own. Returns what it printed."""
    folder = tmp_path_factory.mktemp("elsewhere")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "env", cwd=folder)
    python = folder / "env" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", *built.glob("*.whl"), cwd=folder)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def installed(*arguments):
        return run(folder / "env" / "bin" / "lngrad", *arguments, cwd=folder, environment=environment)

    installed.folder, installed.python, installed.site, installed.environment = folder, python, site, environment
    return installed


@pytest.mark.parametrize("package", PACKAGES)
def test_the_archives_hold_what_they_should(built, package):
    folder, (source,) = ROOT / package / "src" / PACKAGES[package], built.glob(f"{PACKAGES[package]}-*.tar.gz")
    names = zipfile.ZipFile(wheel_of(built, package)).namelist()
    inside = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    packed = {name for name in names if ".dist-info/" not in name}
    assert packed == {f"{folder.name}/{path.relative_to(folder)}" for path in inside}
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "pyproject.toml", f"src/{folder.name}/__init__.py"} <= names
    assert ("scripts/prebuilt.py" in names) == (package == "lngrad")  # it makes wheels with compiled kernels
    assert any(name.startswith("tests/") for name in names)
    assert (ROOT / package / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_both_packages_have_one_version():
    assert lngrad_ascend.__version__ == lngrad_itself.__version__
    needs = (ROOT / "lngrad-ascend" / "pyproject.toml").read_text("utf-8")
    assert f'"lngrad=={lngrad_itself.__version__}"' in needs


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_a_wheel_built_twice_is_the_same(built, package, tmp_path):
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path, ROOT / package, cwd=tmp_path)
    assert wheel_of(built, package).read_bytes() == wheel_of(tmp_path, package).read_bytes()


@pytest.mark.parametrize("package", PACKAGES)
def test_the_metadata_is_that_of_the_project(built, package):
    with zipfile.ZipFile(wheel_of(built, package)) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        found = HeaderParser().parsestr(archive.read(name).decode())
    assert found["License-Expression"] == "Apache-2.0"
    assert found["Description-Content-Type"] == "text/markdown"
    assert found.get_payload() == (ROOT / package / "README.md").read_text("utf-8")
    assert "Typing :: Typed" in found.get_all("Classifier")


@pytest.fixture(scope="module")
def prebuilt():
    """lngrad/scripts/prebuilt.py."""
    path = ROOT / "lngrad" / "scripts" / "prebuilt.py"
    spec = spec_from_file_location("scripts_prebuilt", path)
    module = module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path.parent)
        spec.loader.exec_module(module)
    return module


def test_a_wheel_with_libraries_is_the_plain_one_with_them(built, prebuilt, tmp_path):
    """It needs Numba where no such wheel is made for, and nowhere else; its RECORD has every file."""
    plain = wheel_of(built)
    library = tmp_path / "haswell.so"
    library.write_bytes(b"machine code")
    native = tmp_path / "torch-2.13-0.so"
    native.write_bytes(b"more of it")
    wheels = [prebuilt.make_wheel(plain, [library], "x86_64", tmp_path / name, [native]) for name in "ab"]
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    assert wheels[0].name.endswith("-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl")
    before, after = zipfile.ZipFile(plain), zipfile.ZipFile(wheels[0])
    brought = {"lngrad/cpu/prebuilt/haswell.so", "lngrad/torch/native/prebuilt/torch-2.13-0.so"}
    assert set(after.namelist()) == {*before.namelist(), *brought}
    changed = {name for name in before.namelist() if before.read(name) != after.read(name)}
    assert {name.partition("/")[2] for name in changed} == {"METADATA", "WHEEL", "RECORD"}
    (record,) = (name for name in changed if name.endswith("RECORD"))
    rows = dict(line.split(",", 1) for line in after.read(record).decode().splitlines())
    assert rows.pop(record) == ","
    assert rows == {
        name: f"sha256={prebuilt.digest(after.read(name))},{len(after.read(name))}"
        for name in after.namelist()
        if name != record
    }
    about = HeaderParser().parsestr(after.read(record.replace("RECORD", "METADATA")).decode())
    (need,) = (
        requirement
        for requirement in map(Requirement, about.get_all("Requires-Dist"))
        if requirement.name == "numba" and "extra" not in str(requirement)
    )
    assert not need.marker.evaluate({"platform_system": "Linux", "platform_machine": "x86_64"})
    assert not need.marker.evaluate({"platform_system": "Linux", "platform_machine": "aarch64"})
    assert need.marker.evaluate({"platform_system": "Linux", "platform_machine": "riscv64"})
    assert need.marker.evaluate({"platform_system": "Darwin", "platform_machine": "arm64"})
    assert "numba" in about.get_all("Provides-Extra")
    tags = HeaderParser().parsestr(after.read(record.replace("RECORD", "WHEEL")).decode())
    assert tags["Root-Is-Purelib"] == "false"
    assert tags.get_all("Tag") == ["py3-none-manylinux_2_17_x86_64", "py3-none-manylinux2014_x86_64"]


STEP = """
import sys, torch, lngrad.torch
from lngrad.torch import native
assert native.module.__spec__.origin.startswith(sys.argv[1]), native.module
x = torch.randn(4, 8, requires_grad=True)
lngrad.torch.layer_norm(x, 8).sum().backward()
print(native.find())
"""


def test_a_wheel_brings_the_native_code_for_torch(built, prebuilt, tmp_path):
    """It is loaded where no compiler is, and serves a step."""
    torch = pytest.importorskip("torch")
    from lngrad.support.cache_folder import keep, kept
    from lngrad.torch import native
    from lngrad.torch.native import building

    try:
        tagged = building.build()
    except building.BuildError as reason:
        pytest.skip(str(reason))
    library = tmp_path / native.name_of(".".join(torch.__version__.split(".")[:2]))
    keep(library, kept(tagged))
    plain = wheel_of(built)
    wheel = prebuilt.make_wheel(plain, [], "x86_64", tmp_path, [library])
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PATH": str(tmp_path)}
    environment.pop(native.SWITCH, None)
    output = run(sys.executable, "-c", STEP, tmp_path / "site", cwd=tmp_path, environment=environment)
    assert output.strip() == str(tmp_path / "site" / "lngrad/torch/native/prebuilt" / library.name)


LOWERED = """
from hashlib import sha256
from lngrad.cpu.compiling import emit, lower
from lngrad.cpu.processors import PROCESSORS
module = lower("slice_dx", "float16", "float32")
print(*(sha256(emit(module.clone(), "f", one, PROCESSORS[one].features)).hexdigest() for one in ("znver4", "x86-64-v4")))
"""


@pytest.mark.slow
def test_what_is_lowered_once_is_alike(prebuilt):
    """A kernel for processors that tell no other dtype's instructions apart has the machine code of each by itself."""
    pytest.importorskip("numba")
    names = ("znver4", "x86-64-v4")
    two = [prebuilt.PROCESSORS[name] for name in names]
    for dtype, number in (("float32", 1), ("float16", 1), ("bfloat16", 2)):
        assert len(prebuilt.lowered_alike(("slice_dx", dtype, "float32"), two)) == number
    every = prebuilt.lowered_alike(("slice_dx", "float16", "float32"), list(prebuilt.PROCESSORS.values()))
    assert [alike[0].name for alike in every] == ["znver5", "znver3", "x86-64-v2", "neoverse-v2"]
    command = [sys.executable, "-c", LOWERED]
    mine, theirs = (run(*command, cwd=ROOT, environment={**os.environ, prebuilt.CHOICE: name}) for name in names)
    assert mine == theirs


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads ELF files")
def test_what_a_library_takes_from_others_is_known(prebuilt, tmp_path):
    """The build refuses what a C library may lack, such as a conversion that only some compilers' libraries have."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    source = tmp_path / "f.c"
    source.write_text(
        "void* memset(void*, int, unsigned long);int other(void);int f(void*p){memset(p,0,1);return other();}"
    )
    command = ["cc", "-shared", "-fPIC", "-fno-builtin", "-nostdlib", "-o", tmp_path / "f.so", source]
    run(*command, cwd=tmp_path)
    assert prebuilt.undefined((tmp_path / "f.so").read_bytes()) - prebuilt.GIVEN == {"other"}


def test_it_is_the_installed_one(lngrad):
    program = "import lngrad; print(lngrad.__file__)"
    where = run(lngrad.python, "-c", program, cwd=lngrad.folder, environment=lngrad.environment)
    assert Path(where.strip()).is_relative_to(lngrad.site)
    assert "numba_cpu" in lngrad("info")


def test_run(lngrad):
    rng = np.random.default_rng(0)
    np.savez(lngrad.folder / "in.npz", **{name: rng.standard_normal((5, 7), np.float32) for name in ("dy", "x")})
    lngrad("run", "in.npz", "-o", "out.npz")
    assert set(np.load(lngrad.folder / "out.npz")) == {"dx", "dgamma", "dbeta"}


def test_the_commands_of_lngrad_ascend_come_with_its_wheel(lngrad):
    assert "safe size" in lngrad("tiling", "--shape", "2,32,16")
    program = "import lngrad_ascend; print(lngrad_ascend.__file__)"
    where = run(lngrad.python, "-c", program, cwd=lngrad.folder, environment=lngrad.environment)
    assert Path(where.strip()).is_relative_to(lngrad.site)


def test_check_brings_cases(lngrad):
    assert "2 passed" in lngrad("check", "--impl", "numpy_cpu", "--filter", "*tail*", "--limit", "2")


def test_check_writes_its_report(lngrad):
    """The report's template is data of the package."""
    for module in ("jinja2", "yaml"):
        pytest.importorskip(module)
    (lngrad.folder / "cases.yaml").write_text("lngrad: 1\ncases:\n  - {name: one, shape: [3, 5]}\n")
    assert "1 passed" in lngrad("check", "cases.yaml", "--impl", "numpy_cpu", "--report", "report.html")
    assert "one" in (lngrad.folder / "report.html").read_text("utf-8")


@pytest.mark.slow
def test_demo(lngrad):
    pytest.importorskip("sklearn")
    assert lngrad("demo", "--epochs", "8")


@pytest.mark.slow
def test_types_are_there_for_users(lngrad):
    pytest.importorskip("mypy")
    program = lngrad.folder / "program.py"
    program.write_text("import lngrad\n\nn: int = lngrad.get_num_threads()\n")
    # What lngrad imports is none of this test; and the types of NumPy are kept for the next run.
    (lngrad.folder / "mypy.ini").write_text(
        "[mypy-numba.*,torch.*,jax.*,triton.*,ml_dtypes.*]\nignore_missing_imports = true\nfollow_imports = skip\n"
    )
    kept = ["--cache-dir", ROOT / ".mypy_cache" / "wheel"]
    command = [sys.executable, "-m", "mypy", *kept, "--python-executable", lngrad.python, program]
    assert "Success" in run(*command, cwd=lngrad.folder, environment=lngrad.environment)
