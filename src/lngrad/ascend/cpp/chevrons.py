"""Launches as `.asc` files write them, ``kernel<<<blocks, l2ctrl, stream>>>(…)``, in plain C++."""

from __future__ import annotations

import re

from lngrad.ascend.cpp.compiling import CompileError

_LAUNCH = re.compile(r"(?P<kernel>[A-Za-z_][\w:]*(?:<[^<>;]*>)?)\s*<<<(?P<numbers>[^<>;]*)>>>\s*\(\s*(?P<rest>\)?)")


def without_chevrons(text: str) -> str:
    """Write every launch as ACLRT_LAUNCH_KERNEL, which tikicpulib.h declares.

    Args:
        text: A C++ file.

    Returns:
        The file with the same lines. A launch's second number, the L2 control, has no meaning here.

    Raises:
        CompileError: A launch has not three numbers between its chevrons.
    """

    def plain(launch: re.Match[str]) -> str:
        numbers = [one.strip() for one in launch["numbers"].split(",")]
        if len(numbers) != 3:
            line = text.count("\n", 0, launch.start()) + 1
            raise CompileError(
                f"line {line}: {launch['kernel']}<<<…>>>: expected blocks, l2ctrl and stream, got {launch['numbers']!r}"
            )
        return f"ACLRT_LAUNCH_KERNEL({launch['kernel']})({numbers[0]}, {numbers[2]}{')' if launch['rest'] else ', '}"

    return _LAUNCH.sub(plain, text)
