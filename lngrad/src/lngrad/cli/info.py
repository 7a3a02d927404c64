"""The command `lngrad info`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Annotated

from typer import Option

from lngrad import backends, get_num_threads
from lngrad.cli.terminal import FAILED, REFUSED, fail, say
from lngrad.errors import install_command

# What an extra of the distribution is for, and the distributions that it installs.
EXTRAS = {
    "numba": ("compiling kernels here (Numba)", "numba"),
    "torch": ("torch tensors, modules, override(), DTensors", "torch"), "jax": ("lngrad.jax", "jax"),
    "gpu": ("GPU kernels", "triton"), "demo": ("lngrad demo", "scikit-learn", "pyyaml"),
    "check": ("YAML cases and HTML reports of lngrad check", "jinja2", "pyyaml", "threadpoolctl"),
    "bench": ("lngrad bench against torch", "torch"), "plots": ("pictures of benchmarks", "matplotlib"),
}  # fmt: skip


def info(
    warm: Annotated[
        bool, Option("--warm", help="Compile every kernel, and the native code for torch, into the cache now.")
    ] = False,
) -> None:
    """Show versions, backends, threads, caches, and what to install for what.

    With --warm, compile the kernels ahead of their first use, and for torch the native code that makes small calls fast.

    Example: lngrad info
    """
    from lngrad.core.fallbacks import last_run
    from lngrad.core.machine import caches, huge_pages, processor, versions
    from lngrad.support.compilers import c_compiler, cxx_compiler

    if warm:
        _warm()
        return
    facts = versions() | {f"backend {name}": state for name, state in backends().items()}
    facts |= {
        "processor": processor(), "caches": ", ".join(caches()) or "unknown",
        "threads": f"{get_num_threads()} (granted to this process; OMP_NUM_THREADS and set_num_threads lower it)",
        "huge pages": huge_pages(), "kernels": _kernels(), "kernel cache": _kernel_cache(),
        "torch native code": _native(build=False),
        "left to torch": last_run() or "nothing yet (no program has used lngrad.torch.override())",
    }  # fmt: skip
    _echo(facts)
    say("\nwhat needs more than lngrad itself:")
    extras = {what: _installed(extra, *names) for extra, (what, *names) in EXTRAS.items()}
    _echo({"lngrad sdk": _compiler(c_compiler), "lngrad kernel": _compiler(cxx_compiler), **extras})


def _echo(facts: dict[str, str]) -> None:
    width = max(map(len, facts))
    for name, fact in facts.items():
        for line in fact.splitlines():
            say(f"{name:{width}}  {line}")
            name = ""


def _installed(extra: str, *distributions: str) -> str:
    try:
        for name in distributions:
            version(name)
        if extra == "torch":
            import_module("lngrad.torch")  # which may refuse it
    except ImportError as reason:
        return install_command(extra) if isinstance(reason, PackageNotFoundError) else f"not used: {reason}"
    return "installed"


def _compiler(find: Callable[[], list[str]]) -> str:
    try:
        return f"installed: {' '.join(find())}"
    except FileNotFoundError as error:
        return str(error)


def _kernels() -> str:
    """Where they come from, or in one line what to install."""
    from lngrad.cpu import prebuilt

    found = prebuilt.library()
    if not isinstance(found, str):
        path, processor = found
        return f"compiled in the package, for {processor.name} ({path}, {path.stat().st_size / 1e3:,.0f} kB)"
    if find_spec("numba") is None:
        return f"none, NumPy computes: {found}; {prebuilt.INSTALL}"
    return f"compiled here when first needed: {found}"


def _kernel_cache() -> str:
    if find_spec("numba") is None:
        return "none, without numba"
    from lngrad.cpu import cache
    from lngrad.support.cache_folder import kept

    reason = cache.why_not()
    if cache.FOLDER is None or (reason and not cache.FOLDER.is_dir()):
        return f"none, as {reason}: kernels are compiled anew in every process"
    others = ("torch-", "ascendc-")
    kernels = [file for file in cache.FOLDER.iterdir() if not file.name.startswith(others)]
    files = [file for file in kernels if file.suffix in (cache.LIBRARY, cache.OBJECT)]
    text = f"{len(files)} files, {sum(file.stat().st_size for file in files) / 1e3:,.0f} kB"
    if broken := sum(kept(file) is None for file in files):
        text += f"; {broken} not whole, compiled again when needed"
    objects = sum(file.suffix == cache.OBJECT for file in files)
    text += f"; {objects} loaded by Numba, for want of a linker" if objects else "; loaded without Numba"
    text += f"; {reason}" if reason else ""
    return f"{cache.FOLDER} ({text})"


def _warm() -> None:
    if backends()["numba_cpu"] != "available":
        fail(f"backend: numba_cpu is not available: {backends()['numba_cpu']}", REFUSED)
    from rich.console import Console
    from rich.progress import track

    from lngrad.cpu import cache, prebuilt
    from lngrad.cpu.entries import compile_elsewhere, kernels, programs_for

    if prebuilt.why_not() is None:
        say(f"kernels: {_kernels()}")
    elif cache.why_not():
        fail(f"the kernels can't be kept; kernel cache: {_kernel_cache()}", REFUSED)
    else:
        programs = programs_for(kernels(), 12)  # kernels a process, which stays below 350 MB
        for wrong in track(compile_elsewhere(programs), "Compiling", len(programs), console=Console(stderr=True)):
            if wrong:
                fail(f"kernels: not compiled: {wrong.splitlines()[-1]}", FAILED)
        say(f"{len(kernels())} kernels in the cache: {_kernel_cache()}")
    say(f"torch native code: {_native(build=True)}")


def _native(*, build: bool) -> str:
    """Whether there is native code for torch, which is built first if that is wanted and can be done."""
    if find_spec("torch") is None:
        return "none, without torch"
    try:
        from lngrad.torch import native
        from lngrad.torch.native import building
    except ImportError as reason:  # of a torch that is too old
        return f"none: {reason}"
    if not build or native.is_off() or native.brought():
        return building.state()
    say("Compiling the native code between torch and the kernels, about a minute", err=True)
    try:
        return str(building.build())
    except (building.BuildError, OSError) as reason:
        return f"none: {reason}"
