"""The calls of one case: draw inputs, have the kernel called with them, compare results with the float64 truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from lngrad.check.calls.kernel import Kernel, KernelError, Request
from lngrad.check.case import CheckCase, Options, Results
from lngrad.check.comparison import Comparison, Piece
from lngrad.check.formats.reading import dump_of
from lngrad.check.implementations import NotApplicable
from lngrad.check.inputs import DrawnInputs, block_rows, draw
from lngrad.check.truth import scales_of
from lngrad.core.machine import available_bytes
from lngrad.support.dtypes import ACCUMULATORS
from lngrad.testing import error_share

# How often the outputs are in memory, beside the inputs: the kernel's, its copy as it returned, and what came through the pipe.
OUTPUTS_OF_A_CALL = 3
OUTPUTS_OF_TWO = 5  # with the first call's, and which elements differ
FAR_OFF = 4.0  # tolerances of `stable`, of a further call of a kernel whose first is within one

RAISED = None, "backward raises"  # without columns that is a refusal: a reshape to (-1, 0) is ambiguous

Kernels = Callable[..., Kernel]  # of a name, and of whether memory is filled before its calls


class CaseCalls:
    """The calls of one case.

    Attributes:
        case, options, standard: What is called and how it is judged.
        kernel: What is called; None where a device's dumps are judged.
        blocks: Of rows, (start, stop): one, where memory suffices for all.
        is_whole: Whether all rows are in one call.
        twice_fits: Whether the results of two calls are in memory at once.
        notes: For the reader of the result.
        calls: How many were made.
        own_eps: Set where the kernel computes statistics of its own, with this epsilon.
    """

    def __init__(self, case: CheckCase, options: Options, standard: str, kernels: Kernels) -> None:
        self.options, self.standard, self.kernels = options, standard, kernels
        self.kernel = None if options.against else kernels(options.impl)
        signature = self.kernel.signature if self.kernel is not None else None
        self.case = case if signature is None else signature.fitted(case)
        self.third = kernels(options.third) if standard == "dual" else None
        rows = case.M if case.layouts or case.normalization.modulated else max(1, block_rows(case, options.block_bytes))
        self.blocks = [(start, min(start + rows, case.M)) for start in range(0, case.M, rows)] if case.M else [(0, 0)]
        self.is_whole = len(self.blocks) == 1 or (not options.against and self.fits(OUTPUTS_OF_A_CALL))
        self.twice_fits = self.fits(OUTPUTS_OF_TWO)  # before any of it is taken
        self.notes: list[str] = [signature.text] if signature is not None and signature.gives else []
        self.calls = 0
        self.own_eps: float | None = None
        self._drawn: DrawnInputs | None = None

    @property
    def seed(self) -> int:
        """Of the inputs."""
        return self.options.seed if self.case.seed is None else self.case.seed

    def fits(self, outputs: int) -> bool:
        """Whether memory suffices for all inputs, for so many times the outputs, and for a block of the truth."""
        needed = self.case.nbytes + (outputs - 1) * self.case.output_nbytes + self.options.block_bytes
        return needed <= available_bytes()

    def drawn(self, start: int, stop: int) -> DrawnInputs:
        if self._drawn is None or (self._drawn.start, self._drawn.stop) != (start, stop):
            self._drawn = draw(self.case, self.seed, start, stop, self.options.max_bytes)
        return self._drawn

    def all_blocks(self) -> Iterator[DrawnInputs]:
        return (self.drawn(*block) for block in self.blocks)

    @property
    def called(self) -> Kernel:
        assert self.kernel is not None  # where dumps are judged, nothing is called
        return self.kernel

    def call(self, request: Request, other: Kernel | None = None) -> Results:
        kernel = other or self.called
        if kernel.has_threads and request.threads is None:
            request = replace(request, threads=kernel.threads)
        if kernel is self.kernel and self.options.allowed:
            request = replace(request, copied=True, allowed=self.options.allowed)
        self.calls += kernel is self.kernel
        return kernel.call(request)

    def placed(self, drawn: DrawnInputs | None = None, case: CheckCase | None = None) -> Request:
        """All rows as they are drawn, or others, in the kernel's memory."""
        blocks = self.all_blocks() if drawn is None else iter([drawn])
        return self.called.memory.place(case or self.case, self.case.M, blocks)

    def first(self) -> Results:
        try:
            return self.call(self.placed())
        except (NotApplicable, KernelError) as refusal:
            if not self.case.N and not getattr(refusal, "died", False) and getattr(refusal, "mistake", None) in RAISED:
                raise NotApplicable(f"it takes no rows without columns: {refusal}") from None
            if self.case.layouts and not getattr(refusal, "died", False) and not getattr(refusal, "mistake", None):
                self.call(self.placed(case=replace(self.case, layouts={})))
                how = ", ".join(f"{name} with {layout}" for name, layout in self.case.layouts.items())
                raise NotApplicable(f"it does not take this layout ({how}): {refusal}") from None
            raise

    def later(self, request: Request) -> Results:
        try:
            return self.call(request)
        except (NotApplicable, KernelError) as error:
            text = str(error) if str(error).startswith("it ") else f"in call {self.calls} of this case: {error}"
            raise KernelError(text, getattr(error, "mistake", None)) from None

    def pieces(self) -> Iterator[Piece]:
        """Calls with blocks of rows, or a device's dumps, a block after the other."""
        for start, stop in self.blocks:
            drawn = self.drawn(start, stop)
            if self.kernel is None:
                assert self.options.against is not None  # as there is no implementation
                got = dump_of(self.case, self.options.against, start, stop, self.options.max_bytes)
            else:
                got = self.call(self.kernel.memory.place(self.case, stop - start, [drawn]))
            yield Piece(start, stop, got, self.third_party([drawn], stop - start), [drawn])

    def third_party(self, blocks: Any, rows: int) -> Results | None:
        return None if self.third is None else self.call(self.third.memory.place(self.case, rows, blocks), self.third)

    def compare(self, pieces: Any, own_statistics: float | None = None, standard: str = "") -> Comparison:
        return Comparison(
            self.case, standard or self.standard, self.options.level, pieces, summed=self.kernel is not None,
            own_statistics=own_statistics,
        )  # fmt: skip

    def compared(self, got: Results, drawn: DrawnInputs | None = None, standard: str = "") -> Comparison:
        """Results of all rows, beside the truth of the inputs as they are drawn, or of others."""
        blocks = self.all_blocks() if drawn is None else [drawn]
        third = None if standard else self.third_party(self.all_blocks() if drawn is None else blocks, self.case.M)
        return self.compare([Piece(0, self.case.M, got, third, blocks)], self.own_eps, standard)

    def is_far_off(self, got: Results, drawn: DrawnInputs | None, first: Results) -> bool:
        """Whether more is wrong with a further call than the last digits, which strict standards fail in right results."""
        if self.compared(first, standard="stable").passed:
            outputs = self.compared(got, drawn, "stable").outputs
            return any(not output.passed and output.worst_share > FAR_OFF for output in outputs)
        return not self.compared(got, drawn, "cosine").passed

    def differs_by_rounding(self, got: Results, expected: Results) -> bool:
        """Whether results of equal calls are as near as sums in another order are, which no standard but `binary` forbids."""
        if self.standard == "binary" or len(self.blocks) > 1:
            return False
        scales = scales_of(self.case, self.drawn(*self.blocks[0]).exact)
        for name in self.case.outputs:
            array, other = getattr(got, name), getattr(expected, name)
            if (array is None) != (other is None) or (array is not None and array.shape != other.shape):
                return False
            if array is not None and array.size:
                scale = scales[name].reshape(array.shape)
                share = error_share(array, other.astype(np.float64), scale, ACCUMULATORS[array.dtype.name])
                if share.max() > FAR_OFF:
                    return False
        return True
