"""What a module's forward computes, by its syntax tree: pure, analytic operations, evaluated on tensors of whoever reads.

No code of the module's runs, and nothing that it keeps can change. What the value of a call depends on, settings, methods
and globals, is noted with the value that it had; what is not listed here is refused, with its line.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import operator
import sys
import types
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from lngrad.typing import Tensor

Path = tuple[Any, ...]  # a module's name, "" for the module itself, then attributes, and items as tuples of a key

_DEPTH = 8  # of calls
_PLAIN = bool, int, float, str, type(None), torch.dtype, torch.memory_format
_CASTS = "to type type_as float double half bfloat16".split()  # noqa: SIM905
_SHAPES = """view reshape expand unflatten flatten permute movedim transpose unsqueeze squeeze contiguous expand_as view_as
    swapaxes layer_norm rms_norm normalize""".split()  # noqa: SIM905  # of which sizes are arguments
_ANALYTIC = """pow square mean sum var std var_mean sqrt rsqrt reciprocal mul div add sub multiply divide true_divide subtract
    norm vector_norm silu sigmoid neg size dim numel""".split()  # noqa: SIM905
_FUNCTIONS = {
    getattr(space, name): name
    for space in (torch, torch.nn.functional, torch.linalg, torch.Tensor)
    for name in (*_CASTS, *_SHAPES, *_ANALYTIC)
    if callable(getattr(space, name, None))
}
_KEYWORDS = """dim axis keepdim keepdims dtype unbiased correction eps weight bias normalized_shape input p ord other exponent
    size shape start_dim end_dim sizes dims source destination device non_blocking copy memory_format""".split()  # noqa: SIM905
_OF_SIZES = len, tuple, list, range
_PURE = *_OF_SIZES, int, float, bool, min, max, abs, math.sqrt
_OPERATORS: dict[str, Any] = {
    name: getattr(operator, function)
    for name, function in zip(
        "Add Sub Mult Div Pow FloorDiv Mod USub UAdd Eq NotEq Lt LtE Gt GtE Is IsNot".split(),  # noqa: SIM905
        "add sub mul truediv pow floordiv mod neg pos eq ne lt le gt ge is_ is_not".split(),  # noqa: SIM905
        strict=True,
    )
} | {"In": lambda item, among: item in among, "NotIn": lambda item, among: item not in among}
_WORDS = {
    "For": "a loop",
    "While": "a loop",
    "GeneratorExp": "a loop",
    "AugAssign": "a change in place",
    "Raise": "an error",
}
OTHER = "other arguments are needed"


class Refused(Exception):
    """A construct that is not read."""


class Size(int):
    """A size of rows, which other calls have otherwise: good for shapes alone."""


@dataclass(eq=False, frozen=True)
class _Object:
    """What is reached by a path and is no value: the module, a dict, a configuration, a class."""

    path: Path
    value: Any


_NOTHING = object()  # a block that ended without return


@cache
def _compiled(text: str, file: str) -> tuple[ast.AST, list[types.CodeType]]:
    """A file's tree, and the code objects in it."""
    tree = ast.parse(text)
    codes = [compile(tree, file, "exec", dont_inherit=True)]
    for code in codes:
        codes += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
    return tree, codes


@cache
def _definition(code: types.CodeType) -> Any:
    """The syntax tree of a function, if the source that is found is what runs."""
    try:
        lines, _ = inspect.findsource(code)
        tree, codes = _compiled("".join(lines), code.co_filename)
    except (OSError, SyntaxError, ValueError, TypeError):
        raise Refused("no source") from None
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.Lambda)
        and code.co_firstlineno == min(part.lineno for part in (node, *getattr(node, "decorator_list", ())))
        and code.co_name == getattr(node, "name", "<lambda>")
        and [*code.co_varnames[: code.co_argcount]] == [part.arg for part in (*node.args.posonlyargs, *node.args.args)]
    ]
    if len(found) != 1 or code not in codes:
        raise Refused("its source is not what runs")
    return found[0]


class Reader(ast.NodeVisitor):
    """Reads a module's forward.

    Attributes:
        watched: What was seen on the way, by path.
        numbers: The floats that were met: one may be eps.
        asks_rank: Whether anything may depend on how many axes a tensor has.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.module, self.asks_rank = _Object(("",), module), False
        self.watched: dict[Path, Any] = {}
        self.numbers: dict[float, None] = {}
        self.names: dict[str, Any] = {}
        self.function: Any = None
        self.depth = self.line = 0

    def value(
        self, inputs: list[Tensor], tensors: dict[str, Tensor], bound: frozenset[int], *, exact: bool
    ) -> Any:  # fmt: skip
        """What the forward gives for inputs, and tensors in the place of the module's.

        Args:
            inputs: x and what comes after it.
            tensors: Parameters and buffers, by name.
            bound: The axes of x whose sizes are those of a parameter.
            exact: Casts are left out, so that float64 inputs give an exact result.

        Raises:
            Refused: The forward, or what it calls, does something that is not read.
        """
        self.tensors, self.exact, self.x, self.bound = tensors, exact, inputs[0], bound
        self.depth = 0
        return self.inlined(type(self.module.value).forward, [self.module, *inputs], {})

    def found(self, value: Any, path: Path) -> Any:
        """A value that was reached by a path, and is watched where it may change."""
        if isinstance(value, torch.Tensor):
            raise Refused(f"{_written(path)} is a tensor, and no parameter or buffer")
        is_plain = all(isinstance(item, _PLAIN) for item in (value if isinstance(value, tuple) else [value]))
        if isinstance(value, float):
            self.numbers[value] = None
        if is_plain or isinstance(value, types.FunctionType):
            if path[0].partition(".")[0] != "torch":
                self.watched[path] = value
            return value
        is_known = isinstance(value, types.BuiltinFunctionType) and (value in _FUNCTIONS or value in _PURE)
        return value if is_known or isinstance(value, types.ModuleType) else _Object(path, value)

    def attribute(self, base: Any, name: str) -> Any:
        if isinstance(base, torch.Tensor):
            return self.of_tensor(base, name)
        if isinstance(base, types.ModuleType):
            return self.found(getattr(base, name), (base.__name__, name))
        if not isinstance(base, _Object):
            raise Refused(f"reads .{name}")
        value: Any = base.value
        path = *base.path, name
        if base is self.module:
            return self.of_module(name, path)
        if isinstance(value, torch.device) and name == "type":
            return _Object(path, value.type)
        if isinstance(value, super):
            kinds, below = type(self.module.value).__mro__, vars(super)["__thisclass__"].__get__(value)
            after = kinds[kinds.index(below) + 1 :]
            static = next((vars(kind)[name] for kind in after if name in vars(kind)), None)
            if isinstance(static, types.FunctionType):
                return partial(static, self.module)
        elif name in getattr(value, "__dict__", ()) and inspect.getattr_static(value, name) is vars(value)[name]:
            return self.found(vars(value)[name], path)
        raise Refused(f"reads {_written(path)}")

    def of_tensor(self, tensor: Tensor, name: str) -> Any:
        self.asks_rank |= name in ("ndim", "dim")
        if name == "shape":
            return self.shape(tensor)
        if name == "device":
            return _Object(("", name), tensor.device)
        if name in ("dtype", "ndim"):
            return getattr(tensor, name)
        function = getattr(torch.Tensor, name, None)
        if callable(function) and function in _FUNCTIONS:
            return partial(function, tensor)
        raise Refused(f"calls {name}")

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        if any(tensor is parameter for parameter in self.tensors.values()):
            return tuple(tensor.shape)
        bound = self.bound if tensor.shape == self.x.shape else ()
        return tuple(n if axis in bound else Size(n) for axis, n in enumerate(tensor.shape))

    def of_module(self, name: str, path: Path) -> Any:
        module = self.module.value
        if name == "training":
            raise Refused("self.training")
        if name in self.tensors:
            return self.tensors[name]
        if name in module._parameters or name in module._buffers:
            return self.found(None, path)
        static = inspect.getattr_static(module, name, self)
        if static is vars(module).get(name, self) or (isinstance(static, (*_PLAIN, tuple)) and static is not self):
            return self.found(static, path)
        if isinstance(static, staticmethod):
            return self.found(static.__func__, path)
        if isinstance(static, types.FunctionType):
            return partial(self.found(static, path), self.module)
        raise Refused(f"{_written(path)} is no plain attribute")

    # Calls

    def call(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if isinstance(function, partial):
            function, args = function.func, [*function.args, *args]
        if isinstance(function, _Object):
            return self.of_an_object(function, args, kwargs)
        if function in _FUNCTIONS:
            return self.operation(function, _FUNCTIONS[function], args, kwargs)
        if isinstance(function, types.FunctionType) and function.__module__ != "torch.nn.functional":
            return self.inlined(function, args, kwargs)
        if function not in _PURE or any(isinstance(part, torch.Tensor | _Object) for part in _parts(args)):
            raise Refused(f"calls {function.__name__}")
        self.asks_rank |= function is len
        if function not in _OF_SIZES and any(isinstance(part, Size) for part in _parts(args)):
            if function is not int:
                raise Refused(f"calls {function.__name__} of a size")
            return Size(*args)
        return function(*args, **kwargs)

    def of_an_object(self, part: _Object, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call a module of a table of activations, or of a class from which the table makes one."""
        kind: Any = part.value if isinstance(part.value, type) else type(part.value)
        if kind is torch.nn.SiLU or kind is torch.nn.Sigmoid:
            name = kind.__name__.lower()
            return self.operation(getattr(torch.nn.functional, name), name, args, kwargs)
        if not issubclass(kind, torch.nn.Module) or not isinstance(part.path[-1], tuple):
            raise Refused(f"calls {_written(part.path)}")
        self.watched[(*part.path, "forward")] = kind.forward
        return self.inlined(kind.forward, [part, *args], kwargs)

    def operation(self, function: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """One of the lists, of tensors and plain values."""
        if name in ("size", "dim", "numel"):
            shape = self.shape(args[0])
            if name == "size":
                return shape[[*args[1:], *kwargs.values()][0]] if len(args) + len(kwargs) > 1 else shape
            return len(shape) if name == "dim" else Size(args[0].numel())
        is_sized = any(isinstance(part, Size) for part in _parts([*args, *kwargs.values()]))
        if (extra := kwargs.keys() - _KEYWORDS) or (is_sized and name not in _SHAPES):
            raise Refused(f"{name} with {min(extra, default='a size')}")
        args, kwargs = [_stripped(value) for value in args], {key: _stripped(value) for key, value in kwargs.items()}
        others = [*args[1:], *kwargs.values()]
        if name in _CASTS and any(isinstance(part, torch.dtype) and not part.is_floating_point for part in others):
            raise Refused("a cast to integers")
        if name in ("norm", "vector_norm") and {*args[1:2], kwargs.get("p"), kwargs.get("ord")} - {None, 2}:
            raise Refused("a norm of another order")
        if name == "squeeze" and (len(others) != 1 or args[0].shape[others[0]] != 1):
            raise Refused("squeeze")
        if name == "layer_norm":
            self.numbers[1e-5] = None  # its default
        if self.exact:
            kwargs.pop("dtype", None)
            if name in _CASTS:
                return args[0]
        return self.normalized(function, args, kwargs) if name == "normalize" else function(*args, **kwargs)

    def normalized(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Compute x / max(norm, eps), or what is the same where either is much larger, and analytic."""
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        x, p, dim, eps, _ = bound.arguments.values()
        if p != 2 or not isinstance(dim, int):
            raise Refused("a norm of another order")
        self.numbers[eps * eps / x.shape[dim]] = None
        return x * (x.square().sum(dim, keepdim=True) + eps * eps).rsqrt() if self.exact else function(*args, **kwargs)

    def inlined(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Read a function that is called."""
        function = getattr(function, "_torchdynamo_orig_callable", function)
        if not isinstance(function, types.FunctionType) or hasattr(function, "__wrapped__"):
            raise Refused(f"{getattr(function, '__name__', 'forward')} is decorated")
        if set(function.__code__.co_freevars) - {"__class__"} or self.depth > _DEPTH:
            raise Refused(f"{function.__name__} is a closure, or calls itself")
        try:
            bound = inspect.signature(function).bind(*args, **kwargs)
        except TypeError:
            raise Refused(f"{OTHER} by {function.__name__}" if self.depth else OTHER) from None
        bound.apply_defaults()
        self.numbers |= {value: None for value in bound.arguments.values() if isinstance(value, float)}
        saved = self.names, self.function, self.line
        self.names, self.function = dict(bound.arguments), function
        self.depth += 1
        try:
            node = _definition(function.__code__)
            result = self.visit(node.body) if isinstance(node, ast.Lambda) else self.block(node.body)
        except Refused as refused:
            line = "" if "(line " in str(refused) else f" (line {self.line})"
            raise Refused(f"{refused}{line}") from None
        finally:
            self.depth -= 1
            self.names, self.function, self.line = saved
        return None if result is _NOTHING else result

    # Statements

    def visit(self, node: Any) -> Any:
        self.line = getattr(node, "lineno", self.line)
        return super().visit(node)

    def generic_visit(self, node: Any) -> Any:
        raise Refused(_WORDS.get(type(node).__name__, type(node).__name__))

    def block(self, body: list[ast.stmt]) -> Any:
        return next((result for result in map(self.visit, body) if result is not _NOTHING), _NOTHING)

    def visit_Expr(self, node: ast.Expr) -> Any:
        self.visit(node.value)
        return _NOTHING

    def visit_Assign(self, node: ast.Assign) -> Any:
        value = self.visit(node.value)
        for target in node.targets:
            self.assign(target, value)
        return _NOTHING

    def assign(self, target: Any, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Tuple) and isinstance(value, tuple | list):
            values, parts = [*value], target.elts
            star = next((k for k, part in enumerate(parts) if isinstance(part, ast.Starred)), None)
            if star is not None:
                end = len(values) - len(parts) + star + 1
                values[star:end] = [values[star:end]]
            for part, item in zip(parts, values, strict=True):
                self.assign(getattr(part, "value", part), item)
        else:
            raise Refused(f"{ast.unparse(target)} is written")

    def visit_If(self, node: ast.If) -> Any:
        return self.block(node.body if self.truth(node.test) else node.orelse)

    def visit_Return(self, node: ast.Return) -> Any:
        return None if node.value is None else self.visit(node.value)

    def visit_Assert(self, node: ast.Assert) -> Any:
        if not self.truth(node.test):
            raise Refused("an error")
        return _NOTHING

    def visit_With(self, node: ast.With) -> Any:
        """Read what is done without autocast, of the CPU if it is its, or that of x's device."""
        call: Any = node.items[0].context_expr
        kind = self.visit(call.func) if isinstance(call, ast.Call) else call
        settings = {key.arg: self.visit(key.value) for key in getattr(call, "keywords", ())}
        if getattr(kind, "value", kind) is not torch.autocast or settings.pop("enabled", None) is not False:
            raise Refused("with")
        device, *others = *map(self.visit, call.args), *settings.values()
        if others or len(node.items) > 1:
            raise Refused("with")
        with nullcontext() if device == "cuda" else torch.autocast("cpu", enabled=False):
            return self.block(node.body)

    # Expressions

    def truth(self, node: ast.expr) -> bool:
        """What a branch is on: settings, dtypes and ranks alone."""
        return bool(_plain(self.visit(node)))

    def visit_Constant(self, node: ast.Constant) -> Any:
        if isinstance(node.value, float):
            self.numbers[node.value] = None
        return node.value

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id in self.names:
            return self.names[node.id]
        space, name = self.function.__globals__, str(self.function.__module__)
        if node.id not in space and hasattr(builtins, node.id):
            return getattr(builtins, node.id)
        if node.id not in space or vars(sys.modules.get(name, builtins)) is not space:
            raise Refused(f"no name {node.id}")
        return self.found(space[node.id], (name, node.id))

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        return self.attribute(self.visit(node.value), node.attr)

    def visit_Call(self, node: ast.Call) -> Any:
        function, args = self.visit(node.func), self.items(node.args)
        kwargs = {key.arg: self.visit(key.value) for key in node.keywords}
        if None in kwargs:
            raise Refused("a call with **")
        if function is super:
            cells = dict(zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=True))
            kind = args[0].value if args else cells["__class__"].cell_contents
            return _Object(("",), super(kind, self.module.value))
        return self.call(function, args, kwargs)  # type: ignore[arg-type]

    def items(self, nodes: list[Any]) -> list[Any]:
        found: list[Any] = []
        for node in nodes:
            found += self.visit(node.value) if isinstance(node, ast.Starred) else [self.visit(node)]
        return found

    def visit_Tuple(self, node: ast.Tuple) -> Any:
        return tuple(self.items(node.elts))

    def visit_List(self, node: ast.List) -> Any:
        return self.items(node.elts)

    def visit_Slice(self, node: ast.Slice) -> Any:
        return slice(*(part and _plain(self.visit(part)) for part in (node.lower, node.upper, node.step)))

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        base, key = self.visit(node.value), self.visit(node.slice)
        if isinstance(base, torch.Tensor):
            if all(part is None or part is ... or part == slice(None) for part in _parts([key])):
                return base[key]
        elif isinstance(base, tuple | list):
            return base[_plain(key)]
        elif isinstance(base, _Object) and isinstance(base.value, dict) and isinstance(key, _PLAIN):
            return self.found(dict.__getitem__(base.value, key), (*base.path, (key,)))
        raise Refused(f"reads {ast.unparse(node)}")

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        left, right, name = self.visit(node.left), self.visit(node.right), type(node.op).__name__
        both = left, right
        is_of_tensors = any(isinstance(part, torch.Tensor) for part in both)
        if name not in _OPERATORS or any(isinstance(part, _Object | partial) for part in both):
            raise Refused(f"the operator {name}")
        if is_of_tensors and name in ("FloorDiv", "Mod"):
            raise Refused("a rest, or a division without it")
        value = _OPERATORS[name](left, right)
        if any(isinstance(part, Size) for part in both) and not isinstance(value, tuple | list):
            if type(value) is not int or name == "Pow":
                raise Refused("arithmetic of a size")
            return Size(value)
        return value

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            return not self.truth(node.operand)
        value = self.visit(node.operand)
        return _OPERATORS[type(node.op).__name__](value if isinstance(value, torch.Tensor) else _plain(value))

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        value = None
        for part in node.values:
            value = _plain(self.visit(part))
            if bool(value) != isinstance(node.op, ast.And):
                break
        return value

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        return self.visit(node.body if self.truth(node.test) else node.orelse)

    def visit_Compare(self, node: ast.Compare) -> Any:
        left = self.visit(node.left)
        for kind, part in zip(node.ops, node.comparators, strict=True):
            right = self.visit(part)
            if isinstance(left, torch.Tensor) and right is None:
                left = ...  # which it is not
            if not _OPERATORS[type(kind).__name__](_plain(left), _plain(right)):
                return False
            left = right
        return True


def _parts(values: Any) -> Any:
    """Values, and those in tuples and lists among them."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from _parts(value)
        else:
            yield value


def _plain(value: Any) -> Any:
    """Refuse what one call has otherwise than another."""
    if any(isinstance(part, torch.Tensor | Size | _Object | partial) for part in _parts([value])):
        raise Refused("a branch on data, sizes or objects")
    return value


def _stripped(value: Any) -> Any:
    if isinstance(value, _Object | partial):
        if isinstance(device := getattr(value, "value", None), torch.device):
            return device
        raise Refused("an operation on an object")
    if isinstance(value, tuple | list):
        return [_stripped(part) for part in value]
    return int(value) if isinstance(value, Size) else value


def _written(path: Path) -> str:
    steps = [f"[{step[0]!r}]" if isinstance(step, tuple) else f".{step}" for step in path[1:]]
    return (path[0].rpartition(".")[2] or "self") + "".join(steps)


def now(module: Any, path: Path) -> Any:
    """What a path leads to now."""
    value: Any = sys.modules.get(path[0]) if path[0] else module
    for step in path[1:]:
        value = dict.__getitem__(value, step[0]) if isinstance(step, tuple) else getattr(value, step)
    return getattr(value, "__func__", value)
