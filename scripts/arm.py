"""Make the aarch64 wheel, use it on an emulated ARM machine, and run tests with it: golden bits, precision, threads, the pool.

Run before a release, or when a kernel has changed.

    python scripts/arm.py --wheels dist
    python scripts/arm.py --wheels dist --processors neoverse-n1 lngrad/tests/cpu/test_pool.py -k many   these, one processor

It needs apt, which fetches QEMU, proot, a linker and a Debian for arm64 into build/arm (600 MB), and pip, which fetches wheels
for that. Nothing is installed on this machine, and no rights of root are needed: proot starts its programs in QEMU.
Kernels are those of the wheel, for each of its processors in turn; there is no Numba. Bits and errors are as on a real machine,
times are not: the tests take 6 minutes a processor (2 cores of an Intel Xeon), with neoverse-v2 more.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

from matrix import Record, merged, read, write

from lngrad.cpu.processors import CHOICE, PROCESSORS

ROOT = Path(__file__).parents[1]
ARM = ROOT / "build" / "arm"
TOOLS = {  # and the packages that have them
    "qemu-aarch64-static": "qemu-user-static", "proot": "proot", "aarch64-linux-gnu-ld": "binutils-aarch64-linux-gnu",
}  # fmt: skip
PACKAGES = ("python3", "bash", "coreutils", "libgomp1", "libstdc++6")
NEEDED = ("pytest>=8", "pytest-timeout>=2.3", "hypothesis>=6.100", "sybil>=9", "pyyaml>=6")
TESTS = (
    *(f"lngrad/tests/core/test_{name}.py" for name in ("golden_bits", "precision", "special_values", "threads")),
    "lngrad/tests/cpu/test_pool.py", "lngrad/tests/cpu/test_workers.py",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist", metavar="FOLDER", help="where the wheel goes")
    parser.add_argument("--processors", help="with the kernels of these alone, with commas between")
    options, tests = parser.parse_known_args()  # files of tests, and what else pytest takes
    ARM.mkdir(parents=True, exist_ok=True)
    fetch_tools()
    fetch_root()
    known = [name for name, processor in PROCESSORS.items() if processor.architecture == "aarch64"]
    wheel = make_wheel(known, options.wheels)
    install(wheel)
    names = options.processors.split(",") if options.processors else known
    results = {name: run_tests(name, tests or list(TESTS)) for name in names}
    if names == known and not tests:
        keep_record(wheel, results)
    failed = [name for name, line in results.items() if not is_passed(line)]
    if failed:
        raise SystemExit(f"failed on {', '.join(failed)}")


def run(*command: object, **options: object) -> None:
    subprocess.run([str(part) for part in command], check=True, **options)  # type: ignore[call-overload]


def unpack(package: Path, folder: Path) -> None:
    """A Debian package's files, where /lib and its like are links into /usr."""
    files = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE)
    run("tar", "-C", folder, "-x", "--keep-directory-symlink", "-f", "-", stdin=files.stdout)


def fetch_tools() -> None:
    """Those that are not installed, with the library that proot needs."""
    host = ARM / "host"
    missing = [
        package for name, package in TOOLS.items() if not shutil.which(name) and not (host / "usr/bin" / name).exists()
    ]
    if not missing:
        return
    debs = ARM / "host-packages"
    for folder in (host, debs):
        folder.mkdir(exist_ok=True)
    run("apt-get", "download", "--quiet", *missing, "libtalloc2", cwd=debs)
    for package in debs.glob("*.deb"):
        unpack(package, host)


def tool(name: str) -> str:
    return shutil.which(name) or str(ARM / "host/usr/bin" / name)


def fetch_root() -> None:
    """Python for arm64 with all that it needs, of the same release of Debian as apt knows here; no package is configured."""
    root, state = ARM / "root", ARM / "apt"
    if (root / "usr/bin/python3").exists():
        return
    for folder in ("lists/partial", "cache/archives/partial"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    settings = {
        "Dir::State": state, "Dir::State::status": state / "status", "Dir::Cache": state / "cache",
        "APT::Architecture": "arm64", "APT::Architectures": "arm64", "Debug::NoLocking": "1",
    }  # fmt: skip
    apt = ["apt-get", "--quiet", *(f"-o{name}={value}" for name, value in settings.items())]
    run(*apt, "update")
    run(*apt, "install", "--yes", "--no-install-recommends", "--download-only", *PACKAGES)
    for name in ("bin", "lib", "sbin"):
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        (root / name).unlink(missing_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    for package in sorted((state / "cache/archives").glob("*.deb")):
        unpack(package, root)
    (root / "tmp").mkdir(exist_ok=True)


def libraries() -> dict[str, str]:
    """The environment variable by which what `fetch_tools` fetched finds its libraries."""
    return {"LD_LIBRARY_PATH": os.pathsep.join(str(folder) for folder in (ARM / "host/usr/lib").glob("*-linux-gnu"))}


def make_wheel(processors: list[str], folder: Path) -> Path:
    """By lngrad/scripts/prebuilt.py, which leaves libraries that fit the sources as they are."""
    path = os.pathsep.join([os.environ["PATH"], str(ARM / "host/usr/bin")])
    command = (sys.executable, ROOT / "lngrad" / "scripts" / "prebuilt.py", "--wheels", folder, *processors)
    run(*command, env={**os.environ, **libraries(), "PATH": path})
    return max(folder.glob("lngrad-*_aarch64.whl"), key=lambda path: path.stat().st_mtime)


def install(wheel: Path) -> None:
    """The wheel, what it depends on and what its tests need, by pip of this machine."""
    version = (ARM / "root/usr/bin/python3").readlink().name.removeprefix("python")
    target = [f"--python-version={version}", "--implementation=cp", "--only-binary=:all:"]
    target += [f"--platform=manylinux_2_{minor}_aarch64" for minor in (28, 27, 24, 17)] + [
        "--platform=manylinux2014_aarch64"
    ]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *target]
    shutil.rmtree(ARM / "site", ignore_errors=True)
    run(*pip, "--target", ARM / "site", wheel, *NEEDED)


def run_tests(processor: str, tests: list[str]) -> str:
    """pytest's last line about the tests with a processor's kernels."""
    print(f"\n{processor}:", flush=True)
    environment = {
        **os.environ, CHOICE: processor, "PYTHONPATH": str(ARM / "site"), "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin",
        "XDG_CACHE_HOME": "/tmp/cache", "HOME": "/tmp", "TMPDIR": "/tmp", **libraries(),  # of proot alone
    }  # fmt: skip
    # The checkout has its own path inside too: proot leaves the paths of newer system calls as they are, as faccessat2's.
    binds = [word for place in (ROOT, "/proc", "/dev") for word in ("-b", place)]
    command = [tool("proot"), "-q", tool("qemu-aarch64-static"), "-r", ARM / "root", *binds, "-w", ROOT]
    command += ["/usr/bin/env", "-u", "LD_LIBRARY_PATH", "/usr/bin/python3", "-m", "pytest", "-q"]
    command += ["-p", "no:cacheprovider", "--timeout=3000", *tests]
    last = ""
    with subprocess.Popen(list(map(str, command)), env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            last = line.strip() or last
    return last


def is_passed(line: str) -> bool:
    return " passed" in line and not any(word in line for word in (" failed", " error"))


def keep_record(wheel: Path, results: dict[str, str]) -> None:
    """The row of docs/versions.md, in the place of an earlier one."""
    versions = {
        name.replace("-", "_"): version
        for name, version in (path.stem.split("-")[:2] for path in (ARM / "site").glob("*.dist-info"))
    }
    record = Record(
        python=(ARM / "root/usr/bin/python3").readlink().name.removeprefix("python"), set="aarch64", level="emulated",
        versions=versions, checks={name: "passed" if is_passed(line) else line for name, line in results.items()},
        tests=next(iter(results.values())).partition(" in ")[0], lngrad=wheel.name.split("-")[1],
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    )  # fmt: skip
    write(merged(read(), [record]))


if __name__ == "__main__":
    main()
