"""The two things that every tiling function does first: check its arguments, and compute in 32-bit
words.

The published host functions keep every number in a uint32_t and check their arguments in helpers
that log and return, after which the caller computes on. Here a broken rule and a wrap-around raise;
``lenient=True`` gives upstream's values, with one warning that says what upstream would not.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from lngrad.ascend.faults import AscendWarning, TilingError
from lngrad.ascend.tiling.structs import UINT32_MAX


def align_up(value: int, unit: int) -> int:
    """Return the smallest multiple of ``unit`` that is not below ``value``."""
    return -(-value // unit) * unit


class Words:
    """The checks and the uint32 arithmetic of one call of a tiling function.

    Args:
        api: The tiling function, for the texts.
        lenient: Go on as upstream does, and warn at ``close``.
    """

    def __init__(self, api: str, lenient: bool) -> None:
        self.api = api
        self.lenient = lenient
        self._complaints: list[str] = []

    def rule(self, holds: bool, text: str) -> None:
        """Raise ``text`` if the rule does not hold, or note it when lenient."""
        if holds:
            return
        if not self.lenient:
            raise TilingError(f"{self.api}: {text}")
        self._complaints.append(text)

    def word(self, what: str, value: int) -> int:
        """Return ``value`` as a uint32_t; a value that does not fit is an error, or wraps when
        lenient."""
        if 0 <= value <= UINT32_MAX:
            return value
        self.rule(False, f"{what}: {value} does not fit a uint32_t (0 to {UINT32_MAX}) and would wrap silently")
        return value & UINT32_MAX

    def shape(self, srcShape: Sequence[int], typeSize: int) -> tuple[int, int, int, int]:
        """Check the arguments that LayerNormGrad, its Beta and LayerNorm share.

        Returns:
            B, S, the H of the memory and the H of the mathematics.
        """
        self.rule(typeSize in (2, 4), f"typeSize: expected 2 (half) or 4 (float), got {typeSize}")
        dims = tuple(int(size) for size in srcShape)
        self.rule(len(dims) == 4, f"srcShape: expected 4 sizes [B, S, storageHLength, originHLength], got {list(dims)}")
        if len(dims) < 4:
            # Upstream reads past the end of its vector here: there is no value to be lenient about.
            raise TilingError(f"{self.api}: srcShape: expected 4 sizes, got {list(dims)}")
        self.rule(all(size > 0 for size in dims), f"srcShape: every size must be above 0, got {list(dims)}")
        B, S, H, originH = (self.word(f"srcShape[{axis}]", size) for axis, size in enumerate(dims[:4]))
        self.rule(originH <= H, f"srcShape: originHLength must not exceed storageHLength {H}, got {originH}")
        return B, S, H, originH

    def divisible(self, H: int) -> None:
        """Refuse H = 0, by which upstream divides."""
        if H == 0:
            raise TilingError(f"{self.api}: hLength must not be 0, upstream divides by it")

    def close(self) -> None:
        """Warn about what was let pass."""
        if self._complaints:
            # 3: the caller of the tiling function.
            warnings.warn(f"{self.api} (lenient): " + "; ".join(self._complaints), AscendWarning, stacklevel=3)
