"""Compile all kernels for the processors of lngrad.cpu.processors, and pack them into platform wheels.

    python scripts/prebuilt.py --wheels dist              libraries for every processor, then the wheels for Linux
    python scripts/prebuilt.py --wheels dist --torch      the wheels with torch's native code too: scripts/native_code.py
    python scripts/prebuilt.py --wheels dist here         one wheel, with the kernels of this machine
    python scripts/prebuilt.py haswell znver4             libraries for these alone, into build/prebuilt/x86_64

It needs what is in pyproject.toml's extra `dev` (Numba, hatchling, build), and a linker for each architecture: ld.lld, or GNU
ld as Debian's binutils-x86-64-linux-gnu and binutils-aarch64-linux-gnu have it. Nothing is run on another processor than this
one, and nothing of it is needed: LLVM compiles for all of them. What fits the sources is left as it is: libraries, and the
kernels of a build that was ended.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import native_code
from native_code import undefined

from lngrad import get_num_threads
from lngrad.cpu import prebuilt
from lngrad.cpu.processors import CHOICE, CHOSEN, HERE, PROCESSORS, Processor, fitting
from lngrad.support.cache_folder import keep, kept

ROOT = Path(__file__).parents[1]
LIBRARIES = ROOT / "build" / "prebuilt"
LINK = ("-shared", "-s", "-z", "noseparate-code", "-z", "noexecstack", "--hash-style=gnu", "--build-id=none")
# What every process with Python in it has, in all versions of the C library; fma for processors without the instruction.
GIVEN = {"fma", "fmaf", "memcpy", "memmove", "memset"}
MAX_BYTES = 15_000_000  # of a wheel
# Tools that take one wheel's metadata for all of them must still find Numba on other systems.
WITHOUT_WHEEL = "platform_system != 'Linux' or (platform_machine != 'x86_64' and platform_machine != 'aarch64')"
# Functions of GIVEN have no newer version. torch's native code needs what torch needs, which is installed or is not.
PLATFORM = "py3-none-manylinux_2_17_{0}.manylinux2014_{0}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("processors", nargs="*", metavar="PROCESSOR", help=", ".join(PROCESSORS))
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="where the wheels go; without it none are made")
    parser.add_argument("--torch", action="store_true", help="with torch's native code; pip fetches gigabytes for it")
    parser.add_argument(
        "--jobs", type=int, default=get_num_threads(), help="processes that compile at once, of 1.5 GB each"
    )
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = [fitting()[0].name if name == "here" else name for name in options.processors] or list(PROCESSORS)
    unknown = set(names) - set(PROCESSORS)
    if unknown:
        parser.error(f"PROCESSOR: expected some of {', '.join(PROCESSORS)}, got {', '.join(sorted(unknown))}")
    missing = [PROCESSORS[name] for name in names if not is_there(PROCESSORS[name])]
    if options.part is not None:
        compile_kernels(missing, options.part)
        return
    for architecture in {processor.architecture for processor in missing}:
        find_linker(architecture)  # before minutes are spent
    if options.wheels and options.torch:  # pip can fail
        for architecture, release in product({PROCESSORS[name].architecture for name in names}, native_code.RELEASES):
            native_code.fetched(release, architecture)
    firsts = dict.fromkeys(
        alike[0].name for alike in (lowered_alike(kernel, missing) for kernel in every()) for alike in alike
    )
    parts = range(-(-options.jobs // max(len(firsts), 1)))
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda part: start(*part, len(parts), names), product(firsts, parts)))
    for processor in missing:
        link(processor)
    if options.wheels:
        with TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, str(ROOT)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            (plain,) = Path(folder).glob("*.whl")
            for architecture in dict.fromkeys(PROCESSORS[name].architecture for name in names):
                of_it = [path_of(PROCESSORS[name]) for name in names if PROCESSORS[name].architecture == architecture]
                native = native_code.libraries(architecture) if options.torch else []
                make_wheel(plain, of_it, architecture, options.wheels, native)


def path_of(processor: Processor) -> Path:
    return LIBRARIES / processor.architecture / f"{processor.name}.so"


def is_there(processor: Processor) -> bool:
    content = kept(path_of(processor))
    return content is not None and prebuilt.symbol("begin", processor).encode() in content


@cache
def every() -> list[tuple[str, str, str]]:
    """All kernels of a library."""
    from lngrad.cpu.entries import kernels
    from lngrad.cpu.kernels.tasks import TRIADS

    return [*kernels(), *((name, "float32", "float32") for name in TRIADS)]


def lowered_alike(kernel: tuple[str, str, str], processors: list[Processor]) -> list[list[Processor]]:
    """The processors, those together that have Numba's part of the work, four fifths of it, in common for a kernel."""
    from lngrad.cpu.kernels.simd import choices

    found: dict[tuple[object, ...], list[Processor]] = {}
    for processor in processors:
        wide, float16, bfloat16 = choices(processor.architecture, processor.features)
        key = (processor.architecture, wide, "float16" in kernel and float16, "bfloat16" in kernel and bfloat16)
        found.setdefault(key, []).append(processor)
    return list(found.values())


def start(first: str, part: int, parts: int, names: list[str]) -> None:
    """In a process of its own: how kernels are lowered is decided when they are imported."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
    command = [sys.executable, __file__, "--part", f"{part}/{parts}", *names]
    subprocess.run(command, check=True, env=environment | {CHOICE: first})


def place_of(kernel: tuple[str, str, str], processor: Processor) -> tuple[str, Path]:
    """The name of a kernel's function, and its object file."""
    name = "_".join(filter(None, kernel))
    return prebuilt.symbol(name, processor), path_of(processor).with_suffix("") / f"{name}.o"


def is_compiled(kernel: tuple[str, str, str], processor: Processor) -> bool:
    symbol, file = place_of(kernel, processor)
    return symbol.encode() in (kept(file) or b"")


def compile_kernels(processors: list[Processor], part: str) -> None:
    """Compile a part of the kernels that are lowered for the chosen processor as for others, for all of these."""
    from lngrad.cpu.compiling import emit, lower

    number, parts = map(int, part.split("/"))
    for kernel in every()[number::parts]:
        for alike in lowered_alike(kernel, processors):
            wanted = [processor for processor in alike if alike[0] == CHOSEN and not is_compiled(kernel, processor)]
            module = lower(*kernel) if wanted else None
            for processor in wanted:
                symbol, file = place_of(kernel, processor)
                keep(file, emit(module.clone(), symbol, processor.name, processor.features))
    print(f"{CHOSEN.name}, part {number + 1} of {parts}: {time.process_time():.0f} s of processor time", flush=True)


def link(processor: Processor) -> None:
    """Link a processor's library, and remove what it is made of."""
    linker, folder = find_linker(processor.architecture), path_of(processor).with_suffix("")
    with TemporaryDirectory() as name:
        objects = [Path(name, place_of(kernel, processor)[1].name) for kernel in every()]
        for path in objects:  # without the digest behind them
            path.write_bytes(kept(folder / path.name))
        target = Path(name, path_of(processor).name)
        subprocess.run([linker, *LINK, "-o", target, *sorted(objects)], check=True)
        content = target.read_bytes()
    missing = undefined(content) - GIVEN
    if missing:
        raise SystemExit(f"{processor.name}: needs {', '.join(sorted(missing))}, which a C library may lack")
    keep(path_of(processor), content)
    shutil.rmtree(folder)
    print(f"{path_of(processor)}: {len(objects)} kernels, {len(content) / 1e3:.0f} kB", flush=True)


def find_linker(architecture: str) -> str:
    names = [f"{architecture.replace('_', '-')}-linux-gnu-ld", "ld.lld", *(["ld"] if architecture == HERE else [])]
    for name in names:
        if shutil.which(name):
            return name
    raise SystemExit(f"linker: expected one for {architecture} ({', '.join(names)}), found none")


def make_wheel(
    plain: Path, libraries: list[Path], architecture: str, folder: Path, native: Sequence[Path] = ()
) -> Path:
    """Write the wheel of an architecture: the plain one with libraries, another tag, and Numba where no such wheel is.

    Args:
        plain: The wheel without libraries.
        libraries: Of kernels.
        architecture: x86_64 or aarch64.
        folder: Where the wheel goes.
        native: Libraries between torch and the kernels.
    """
    name, version, *_ = plain.stem.split("-")
    wheel = folder / f"{name}-{version}-{PLATFORM.format(architecture)}.whl"
    about = f"{name}-{version}.dist-info"
    python, abi, platforms = PLATFORM.format(architecture).split("-")
    tags = "".join(f"Tag: {python}-{abi}-{platform}\n" for platform in platforms.split("."))
    changes = {
        f"{about}/METADATA": (r"^(Requires-Dist: numba>=[^;\n]*)$", rf"\1; {WITHOUT_WHEEL}"),
        f"{about}/WHEEL": (r"^Root-Is-Purelib: true\nTag: py3-none-any$", f"Root-Is-Purelib: false\n{tags}".rstrip()),
    }
    with zipfile.ZipFile(plain) as archive:
        files = {
            entry.filename: archive.read(entry)
            for entry in archive.infolist()
            if not entry.filename.endswith("/RECORD")
        }
        date = archive.infolist()[0].date_time
    for changed, (pattern, text) in changes.items():
        content, number = re.subn(pattern, text, files[changed].decode(), flags=re.MULTILINE)
        if number != 1:
            raise SystemExit(f"{plain}: expected one {pattern!r} in {changed}, got {number}")
        files[changed] = content.encode()
    for place, brought in (("cpu", libraries), ("torch/native", native)):
        files |= {f"lngrad/{place}/prebuilt/{library.name}": library.read_bytes() for library in brought}
    record = f"{about}/RECORD"
    lines = [f"{path},sha256={digest(content)},{len(content)}\n" for path, content in files.items()]
    files[record] = "".join([*lines, f"{record},,\n"]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, date)
            entry.external_attr, entry.compress_type = (stat.S_IFREG | 0o644) << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.2f} MB")
    if wheel.stat().st_size > MAX_BYTES:
        raise SystemExit(f"{wheel}: expected at most {MAX_BYTES / 1e6:.0f} MB")
    return wheel


def digest(content: bytes) -> str:
    """As a wheel's RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


if __name__ == "__main__":
    main()
