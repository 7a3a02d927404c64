"""A local checkout of a kernel of the Hugging Face hub: its sources for the CPU are compiled here, its layers imported."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from lngrad.errors import MISSING, BackendUnavailable

_SUFFIXES = (".cpp", ".cc", ".cxx", ".c")


def layer(path: str) -> Any:
    """The class of a layer in FOLDER, or of FOLDER:LAYER where it has several.

    torch compiles with each section's flags, and keeps the library until a source changes.

    Raises:
        BackendUnavailable: It is no such checkout, has nothing for a CPU, or does not compile.
    """
    folder, _, wanted = path.partition(":")
    root = Path(folder).resolve()
    if not (root / "build.toml").is_file():
        raise BackendUnavailable(f"--impl: hub: {root / 'build.toml'}: {MISSING}")
    try:
        import tomllib  # Python 3.11
        import torch
        from torch.utils.cpp_extension import load
    except ModuleNotFoundError as error:
        raise BackendUnavailable(f"--impl: hub: needs {error.name}, which is not installed") from None
    build = tomllib.loads((root / "build.toml").read_text("utf-8"))
    name = build["general"]["name"].replace("-", "_")
    namespace = f"_{name}_lngrad"
    sections = [section for section in build.get("kernel", {}).values() if section["backend"] == "cpu"]
    if sections:
        _compile(load, namespace, root, [*sections, build["torch"]])
    elif "torch-noarch" not in build:
        raise BackendUnavailable(f"--impl: hub: {root.name}: expected a kernel with backend cpu, found none")
    ops = ModuleType(f"{name}._ops")
    vars(ops).update(ops=getattr(torch.ops, namespace), add_op_namespace_prefix=lambda op: f"{namespace}::{op}")
    sys.modules[ops.__name__] = ops
    sys.path.insert(0, str(root / "torch-ext"))
    layers = import_module(f"{name}.layers")
    found = [var for var, kind in vars(layers).items() if isinstance(kind, type) and issubclass(kind, torch.nn.Module)]
    chosen = [var for var in found if var == wanted or (not wanted and "norm" in var.lower())]
    if len(chosen) != 1:
        raise BackendUnavailable(f"--impl: hub: expected FOLDER:LAYER with one of {', '.join(found)}, got {path!r}")
    return getattr(layers, chosen[0])


def _compile(load: Any, namespace: str, root: Path, sections: list[dict[str, Any]]) -> None:
    """Have torch's `load` compile the sources of these sections of build.toml into operators of a namespace."""

    def listed(key: str) -> list[str]:
        return [text for section in sections for text in section.get(key, ())]

    sources = [str(root / source) for source in listed("src") if source.endswith(_SUFFIXES)]
    folders = [str(Path(__file__).parent), *(str(root / folder) for folder in listed("include"))]
    flags = ["-DCPU_KERNEL", "-fopenmp", "-O3", *listed("cxx-flags")]
    try:
        load(
            namespace, sources, extra_cflags=flags, extra_ldflags=["-fopenmp"], is_python_module=False,
            extra_include_paths=folders,
        )  # fmt: skip
    except (RuntimeError, OSError) as error:
        lines = [line for line in str(error).splitlines() if "error:" in line] or [str(error)]
        raise BackendUnavailable(f"--impl: hub: it does not compile: {' / '.join(lines[:2])}") from None
