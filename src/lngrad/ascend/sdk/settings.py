"""What a folder is written with: which device its programs see."""

from __future__ import annotations

from dataclasses import dataclass

from lngrad.ascend.soc import DEFAULT, Mode, Rounding, use


@dataclass(frozen=True)
class Settings:
    """Options of ``lngrad sdk``.

    Attributes:
        soc: a SoC of ``lngrad.ascend.soc.names()``.
        cann: the CANN release whose documents the checks follow.
        mode: "strict" or "compat".
        rounding: "even" or "device".
        unified: whether host memory may be in the place of device memory.
    """

    soc: str = DEFAULT
    cann: str = "8.3"
    mode: Mode = "strict"
    rounding: Rounding = "even"
    unified: bool = False

    def __post_init__(self) -> None:
        with self.choose():  # refuses what is wrong
            pass

    def choose(self) -> use:
        """Simulate this in the calling thread, from now on or for a ``with`` block.

        Raises:
            UnknownSoc, ValueError: as ``lngrad.ascend.soc.use``.
        """
        return use(self.soc, cann=self.cann, mode=self.mode, rounding=self.rounding)
