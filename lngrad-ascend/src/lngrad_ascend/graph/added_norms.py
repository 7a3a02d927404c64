"""The graph ops AddLayerNorm, AddLayerNormGrad, DeepNorm and DeepNormGrad: the rows of aclnn under the names of their
protos (ops-nn, norm/*/op_graph), on arrays. What holds for dtypes and shapes is decided by those rows.
"""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lngrad.core.arrays import Output, as_array, empty, spec_of
from lngrad.core.problem import Role
from lngrad.core.threads import get_num_threads
from lngrad.errors import BackendUnavailable, DtypeError, LngradError, ShapeError
from lngrad.support.addresses import as_numpy
from lngrad.support.dtypes import contiguous_strides
from lngrad.typing import AnyArray, Shape
from lngrad_ascend import soc
from lngrad_ascend.acl.enums import aclnnStatus
from lngrad_ascend.acl.interface import StatusError
from lngrad_ascend.acl.tensor import NUMPY_DTYPES, TensorFacts
from lngrad_ascend.aclnn.decision import Decision, decide
from lngrad_ascend.aclnn.norms import ADD_LAYER_NORM, ADD_LAYER_NORM_GRAD, DEEP_NORM, DEEP_NORM_GRAD
from lngrad_ascend.aclnn.operator import FLOAT, AclnnOperator
from lngrad_ascend.graph.layer_norm_grad import UNKNOWN, UNKNOWN_RANK, DtypeLike, dtype_name

_DTYPES = {dtype.name: name for name, dtype in NUMPY_DTYPES.items()}
_STAND_IN = 16  # for a dimension that is unknown: any size that breaks no rule
_SHAPES: dict[Role, Shape] = {Role.TENSOR: (1, _STAND_IN), Role.STATISTIC: (1, 1), Role.PARAMETER: (_STAND_IN,)}
_SNAKE = {"additionalOutput": "additional_output"}


class AddedNormOp:
    """A norm of a sum, or its gradient: what a graph compiler asks before there are data, and the results.

    Attributes:
        name: Of the op.
        inputs: Names of its tensors, in order.
        optional: Those that may be None; they come last.
        attributes: Names and defaults of what else it takes.
        results: The type of the results, with their names.
    """

    def __init__(self, row: AclnnOperator, **attributes: Any):
        self._row, self.name, self.attributes = row, row.name.removeprefix("aclnn"), attributes
        self._names = {name: re.sub("(Optional|Out)$", "", name) for name in (*row.inputs, *row.outputs)}
        self.inputs = tuple(self._names[name] for name in row.inputs)
        self.optional = tuple(self._names[name] for name in row.inputs if name.endswith("Optional"))
        self.results: Any = namedtuple(f"{self.name}Outputs", [self._names[name] for name in row.outputs])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"{__name__}.{self.name}"

    def __call__(self, *arrays: AnyArray | None, **attributes: Any) -> Any:
        """Compute.

        Args:
            arrays: The inputs, NumPy arrays or torch tensors on the CPU; the optional ones may be None or left out.
            attributes: By name.

        Returns:
            The results by name, of the kind of the inputs: those like x in x's dtype, the others in float32. None for
            AddLayerNorm's x without additional_output.

        Raises:
            ShapeError, DtypeError: An argument breaks a rule of the page.
            BackendUnavailable: The thread's SoC has not the op.
        """
        named = self._named(arrays)
        inputs = {name: None if array is None else as_array(name, array) for name, array in named.items()}
        promised = self._every_output(inputs.values(), attributes)
        kind = next(spec_of(name, array).kind for name, array in inputs.items() if array is not None)
        results = [empty(kind, output) for output in promised]
        views: list[Any] = [None if array is None else as_numpy(array) for array in (*inputs.values(), *results)]
        facts = dict(zip(self._names, map(_facts, views), strict=True))
        decision = self._decide(facts, self._settings(attributes), ShapeError)
        by_name = dict(zip(self._names, views, strict=True))
        used = {name: by_name[name] for name, _, _ in decision.tensors}
        decision.run(used, np.empty(decision.workspace_bytes, np.uint8))
        named_results = zip(self._row.outputs, results, strict=True)
        return self.results(*[result if name in used else None for name, result in named_results])

    def outputs(self, *arrays: AnyArray | None, **attributes: Any) -> Any:
        """Shape and dtype of each output that is given, from the inputs' facts alone. Arguments and errors: as of the call."""
        absent = self.unwritten(**attributes)
        every = self._every_output(arrays, attributes)._asdict().items()
        return self.results(*(None if name in absent else output for name, output in every))

    def unwritten(self, **attributes: Any) -> tuple[str, ...]:
        """Names of the outputs that the attributes leave out: AddLayerNorm's x without additional_output."""
        return () if self._settings(attributes).get("additional_output", True) else ("x",)

    def _every_output(self, arrays: Iterable[AnyArray | None], attributes: dict[str, Any]) -> Any:
        self._settings(attributes)
        specs = [None if array is None else spec_of(name, array) for name, array in self._named([*arrays]).items()]
        shapes = self.infer_shape(*(spec and spec.shape for spec in specs))
        dtypes = self.infer_dtype(*(spec and spec.dtype for spec in specs))
        return self.results(*map(Output.of, shapes, dtypes))

    def infer_dtype(self, *dtypes: DtypeLike | None) -> Any:
        """Names of the outputs' dtypes from those of the inputs: names, or dtypes of NumPy or torch; None: not given.

        Raises:
            DtypeError: They are no row of the op's table on the thread's SoC.
        """
        names = {name: None if dtype is None else dtype_name(dtype) for name, dtype in self._named(dtypes).items()}
        for name, dtype in names.items():
            if dtype is not None and dtype not in _DTYPES:
                raise DtypeError(f"{name}: expected float32, float16 or bfloat16, got {dtype}")
        like_x = {names[self._names[name]] for name in self._of(Role.TENSOR, self._row.inputs)} - {None}
        wide = "float32" if len(like_x) != 1 else like_x.pop()
        results: list[Any] = [wide if self._row.roles[name] is Role.TENSOR else "float32" for name in self._row.outputs]
        facts: dict[str, TensorFacts | None] = {}
        for name, dtype in zip(self._names, (*names.values(), *results), strict=True):
            shape = _SHAPES[self._row.roles[name]]
            facts[name] = None if dtype is None else TensorFacts(_DTYPES[dtype], shape, contiguous_strides(shape))
        self._decide(facts, self._settings({}), DtypeError)
        return self.results(*results)

    def infer_shape(self, *shapes: Sequence[int] | None) -> Any:
        """Shapes of the outputs from those of the inputs: -1 is an unknown dimension, (-2,) an unknown rank.

        Raises:
            ShapeError: What is known breaks a rule.
        """
        sizes = {name: None if shape is None else tuple(shape) for name, shape in self._named(shapes).items()}
        row = self._row
        known = {name: sizes[self._names[name]] for name in row.inputs}
        like_x = [known[name] for name in self._of(Role.TENSOR, row.inputs)]
        common: Shape = next((shape for shape in like_x if shape not in (None, UNKNOWN_RANK)), UNKNOWN_RANK)
        gamma: Shape = known["gamma"] or ()
        rows: Shape = UNKNOWN_RANK
        if UNKNOWN_RANK in (common, gamma) or len(gamma) > len(common):
            x = common
        else:
            lead = len(common) - len(gamma)
            statistics = [
                (*shape[:lead], *(UNKNOWN,) * len(gamma))
                for name, shape in known.items()
                if row.roles[name] is Role.STATISTIC and shape is not None and len(shape) == len(common)
            ]
            x = _merged(len(common), [*like_x, (*(UNKNOWN,) * lead, *gamma), *statistics])
            rows, gamma = x[:lead] + (1,) * len(gamma), x[lead:]
        forms = {Role.TENSOR: x, Role.STATISTIC: rows, Role.PARAMETER: gamma}
        results = [forms[row.roles[name]] for name in row.outputs]
        if UNKNOWN_RANK not in (x, gamma, *known.values()):
            facts: dict[str, TensorFacts | None] = {}
            for name, shape in zip(self._names, (*sizes.values(), *results), strict=True):
                form = forms[row.roles[name]]
                filled = shape and _filled(shape, form if len(form) == len(shape) else shape)
                facts[name] = None if filled is None else TensorFacts(FLOAT, filled, contiguous_strides(filled))
            self._decide(facts, self._settings({}), ShapeError)
        return self.results(*results)

    def _of(self, role: Role, names: Sequence[str]) -> list[str]:
        return [name for name in names if self._row.roles[name] is role and name != "biasOptional"]

    def _named(self, arguments: Sequence[Any]) -> dict[str, Any]:
        if not len(self.inputs) - len(self.optional) <= len(arguments) <= len(self.inputs):
            raise TypeError(f"{self.name}: expected {', '.join(self.inputs)}, got {len(arguments)} of them")
        values = dict.fromkeys(self.inputs) | dict(zip(self.inputs, arguments, strict=False))
        missing = [name for name, value in values.items() if value is None and name not in self.optional]
        if missing:
            raise TypeError(f"{missing[0]}: expected an array, got None")
        return values

    def _settings(self, attributes: dict[str, Any]) -> dict[str, Any]:
        if unknown := [name for name in attributes if name not in self.attributes]:
            raise TypeError(f"{self.name}: expected {', '.join(self.attributes) or 'no attributes'}, got {unknown[0]}")
        return self.attributes | attributes

    def _decide(
        self, facts: dict[str, TensorFacts | None], settings: dict[str, Any], wrong: type[LngradError]
    ) -> Decision:
        """The row's decision. What the row refuses is an error under the op's own names."""
        values = tuple(facts[name] if name in facts else settings[_SNAKE.get(name, name)] for name in self._row.places)
        decision = decide(self._row, values, soc.current(), get_num_threads())
        if isinstance(decision, StatusError):
            if decision.code == aclnnStatus.ACLNN_ERR_INNER_FIND_KERNEL_ERROR:
                raise BackendUnavailable(decision.text.removeprefix("aclnn"))
            raise wrong(re.sub(r"\w+", lambda word: self._names.get(word[0], word[0]), decision.text))
        return decision


def _facts(array: Any) -> TensorFacts | None:
    if array is None:
        return None
    steps = tuple(stride // array.itemsize for stride in array.strides)
    return TensorFacts(_DTYPES[array.dtype.name], array.shape, steps)


def _merged(rank: int, shapes: Sequence[Shape | None]) -> Shape:
    """Return the known dimensions of a shape that several arrays have."""
    fitting = [shape for shape in shapes if shape is not None and len(shape) == rank]
    return tuple(next((size for size in sizes if size != UNKNOWN), UNKNOWN) for sizes in zip(*fitting, strict=True))


def _filled(shape: Shape, other: Shape) -> Shape:
    """A shape whose unknown dimensions are those of another one, or a stand-in."""
    sizes = [size if size != UNKNOWN else instead for size, instead in zip(shape, other, strict=True)]
    return tuple(_STAND_IN if size == UNKNOWN else size for size in sizes)


AddLayerNorm = AddedNormOp(ADD_LAYER_NORM, epsilon=1e-5, additional_output=False)
AddLayerNormGrad = AddedNormOp(ADD_LAYER_NORM_GRAD)
DeepNorm = AddedNormOp(DEEP_NORM, alpha=0.3, epsilon=1e-6)
DeepNormGrad = AddedNormOp(DEEP_NORM_GRAD, alpha=0.3)
