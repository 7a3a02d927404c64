"""Compile all kernels for the processors of lngrad.cpu.processors, and pack them into platform wheels.

    python scripts/prebuilt.py --wheels dist              libraries for every processor, then the wheels for Linux
    python scripts/prebuilt.py haswell znver4             libraries for these alone, into build/prebuilt/x86_64

It needs what is in pyproject.toml's extra `dev` (Numba, hatchling, build), and a linker for each architecture: ld.lld, or GNU
ld as Debian's binutils-x86-64-linux-gnu and binutils-aarch64-linux-gnu have it. Nothing is run on another processor than this
one, and nothing of it is needed: LLVM compiles for all of them. A library that fits the sources is left as it is.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from lngrad import get_num_threads
from lngrad.core.cache_folder import keep, kept
from lngrad.cpu import prebuilt
from lngrad.cpu.processors import CHOICE, CHOSEN, HERE, PROCESSORS, Processor

ROOT = Path(__file__).parents[1]
LIBRARIES = ROOT / "build" / "prebuilt"
LINK = ("-shared", "-s", "-z", "noseparate-code", "-z", "noexecstack", "--hash-style=gnu", "--build-id=none")
# What every process with Python in it has, in all versions of the C library; fma for processors without the instruction.
GIVEN = {"fma", "fmaf", "memcpy", "memmove", "memset"}
MOST_BYTES = 8_000_000  # of a wheel
# Tools that take one wheel's metadata for all of them must still find Numba on other systems.
WITHOUT_WHEEL = "platform_system != 'Linux' or (platform_machine != 'x86_64' and platform_machine != 'aarch64')"
PLATFORM = "py3-none-manylinux_2_17_{0}.manylinux2014_{0}"  # functions of GIVEN have no newer version


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("processors", nargs="*", metavar="PROCESSOR", help=", ".join(PROCESSORS))
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="where the wheels go; without it none are made")
    parser.add_argument(
        "--jobs", type=int, default=get_num_threads(), help="processes that compile at once, of 1.5 GB each"
    )
    options = parser.parse_args()
    names = options.processors or list(PROCESSORS)
    unknown = set(names) - set(PROCESSORS)
    if unknown:
        parser.error(f"PROCESSOR: expected some of {', '.join(PROCESSORS)}, got {', '.join(sorted(unknown))}")
    if CHOSEN is not None:
        compile_libraries([PROCESSORS[name] for name in names])
        return
    alike: dict[tuple[str, tuple[bool, ...]], list[str]] = {}
    for name in names:
        if not is_there(PROCESSORS[name]):
            alike.setdefault(lowered_alike(PROCESSORS[name]), []).append(name)
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(make_libraries, alike.values()))
    if options.wheels:
        with TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, str(ROOT)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            (plain,) = Path(folder).glob("*.whl")
            for architecture in dict.fromkeys(PROCESSORS[name].architecture for name in names):
                of_it = [path_of(PROCESSORS[name]) for name in names if PROCESSORS[name].architecture == architecture]
                make_wheel(plain, of_it, architecture, options.wheels)


def path_of(processor: Processor) -> Path:
    return LIBRARIES / processor.architecture / f"{processor.name}.so"


def is_there(processor: Processor) -> bool:
    content = kept(path_of(processor))
    return content is not None and prebuilt.symbol("begin", processor).encode() in content


def lowered_alike(processor: Processor) -> tuple[str, tuple[bool, ...]]:
    """What Numba's part of the work, four fifths of it, depends on: processors that have it in common share that."""
    from lngrad.cpu.kernels.simd import choices

    return processor.architecture, choices(processor.architecture, processor.features)


def make_libraries(names: list[str]) -> None:
    """In a process of its own: how kernels are lowered is decided when they are imported."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
    subprocess.run([sys.executable, __file__, *names], check=True, env=environment | {CHOICE: names[0]})


def compile_libraries(processors: list[Processor]) -> None:
    """Compile all kernels for processors that they are lowered alike for, and link each one's."""
    from lngrad.cpu.compiling import emit, lower
    from lngrad.cpu.entries import kernels
    from lngrad.cpu.kernels.tasks import TRIADS

    start, linker = time.perf_counter(), find_linker(processors[0].architecture)
    every = [*kernels(), *((name, "float32", "float32") for name in TRIADS)]
    with TemporaryDirectory() as name:
        folder = Path(name)
        for processor in processors:
            (folder / processor.name).mkdir()
        for one in every:
            kernel, module = "_".join(filter(None, one)), lower(*one)
            for processor in processors:
                symbol = prebuilt.symbol(kernel, processor)
                code = emit(module.clone(), symbol, processor.name, processor.features)
                (folder / processor.name / f"{kernel}.o").write_bytes(code)
        for processor in processors:
            target, objects = folder / f"{processor.name}.so", sorted((folder / processor.name).glob("*.o"))
            subprocess.run([linker, *LINK, "-o", target, *objects], check=True)
            content = target.read_bytes()
            missing = undefined(content) - GIVEN
            if missing:
                raise SystemExit(f"{processor.name}: needs {', '.join(sorted(missing))}, which a C library may lack")
            keep(path_of(processor), content)
            print(f"{path_of(processor)}: {len(every)} kernels, {len(content) / 1e3:.0f} kB", flush=True)
    print(f"{', '.join(one.name for one in processors)}: {time.perf_counter() - start:.0f} s", flush=True)


def find_linker(architecture: str) -> str:
    names = [f"{architecture.replace('_', '-')}-linux-gnu-ld", "ld.lld", *(["ld"] if architecture == HERE else [])]
    for name in names:
        if shutil.which(name):
            return name
    raise SystemExit(f"linker: expected one for {architecture} ({', '.join(names)}), found none")


def undefined(library: bytes) -> set[str]:
    """The names that an ELF library for a little-endian machine of 64 bits takes from others."""
    sections, size, number = struct.unpack_from("<Q", library, 40)[0], *struct.unpack_from("<HH", library, 58)
    found = set()
    for k in range(number):
        _, kind, _, _, offset, length, link, _, _, _ = struct.unpack_from("<IIQQQQIIQQ", library, sections + k * size)
        if kind != 11:  # SHT_DYNSYM
            continue
        (strings,) = struct.unpack_from("<Q", library, sections + link * size + 24)
        for at in range(offset + 24, offset + length, 24):  # the first is none
            name, _, _, place, _, _ = struct.unpack_from("<IBBHQQ", library, at)
            if place == 0:
                end = library.index(b"\0", strings + name)
                found.add(library[strings + name : end].decode())
    return found


def make_wheel(plain: Path, libraries: list[Path], architecture: str, folder: Path) -> Path:
    """Write the wheel of an architecture: the plain one with libraries, another tag, and Numba where no such wheel is."""
    name, version, *_ = plain.stem.split("-")
    wheel = folder / f"{name}-{version}-{PLATFORM.format(architecture)}.whl"
    about = f"{name}-{version}.dist-info"
    python, abi, platforms = PLATFORM.format(architecture).split("-")
    tags = "".join(f"Tag: {python}-{abi}-{one}\n" for one in platforms.split("."))
    changes = {
        f"{about}/METADATA": (r"^(Requires-Dist: numba>=[^;\n]*)$", rf"\1; {WITHOUT_WHEEL}"),
        f"{about}/WHEEL": (r"^Root-Is-Purelib: true\nTag: py3-none-any$", f"Root-Is-Purelib: false\n{tags}".rstrip()),
    }
    with zipfile.ZipFile(plain) as archive:
        files = {one.filename: archive.read(one) for one in archive.infolist() if not one.filename.endswith("/RECORD")}
        date = archive.infolist()[0].date_time
    for changed, (pattern, text) in changes.items():
        content, number = re.subn(pattern, text, files[changed].decode(), flags=re.MULTILINE)
        if number != 1:
            raise SystemExit(f"{plain}: expected one {pattern!r} in {changed}, got {number}")
        files[changed] = content.encode()
    files |= {f"lngrad/cpu/prebuilt/{one.name}": one.read_bytes() for one in libraries}
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
    if wheel.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{wheel}: expected at most {MOST_BYTES / 1e6:.0f} MB")
    return wheel


def digest(content: bytes) -> str:
    """As a wheel's RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


if __name__ == "__main__":
    main()
