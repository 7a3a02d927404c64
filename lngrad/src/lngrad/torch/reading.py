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
_PAIRS = """Add add Sub sub Mult mul Div truediv Pow pow FloorDiv floordiv Mod mod USub neg UAdd pos Eq eq NotEq ne Lt lt LtE le
    Gt gt GtE ge Is is_ IsNot is_not""".split()  # noqa: SIM905
_OPERATORS: dict[str, Any] = {
    **dict(zip(_PAIRS[::2], (getattr(operator, name) for name in _PAIRS[1::2]), strict=True)),
    "In": lambda item, among: item in among,
    "NotIn": lambda item, among: item not in among,
}
_WORDS = dict.fromkeys(("For", "While", "GeneratorExp"), "a loop") | {
    "AugAssign": "a change in place",
    "Raise": "an error",
}


class Refused(Exception):
    """A construct that is not read."""


def _refuse(condition: Any, text: str) -> None:
    if condition:
        raise Refused(text)


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
    _refuse(len(found) != 1 or code not in codes, "its source is not what runs")
    return found[0]


class Reader(ast.NodeVisitor):
    """Reads a module's forward; notes what was seen, by path, the floats, one of which may be eps, and whether ranks were."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module, self.asks_rank = _Object(("",), module), False
        self.watched: dict[Path, Any] = {}
        self.numbers: dict[float, None] = {}
        self.names: dict[str, Any] = {}
        self.function: Any = None
        self.depth = self.line = 0

    def value(self, x: Tensor, tensors: dict[str, Tensor], bound: frozenset[int], *, exact: bool) -> Any:
        """The forward with other tensors, exact: without casts. The sizes of bound axes are those of a parameter."""
        self.tensors, self.exact, self.x, self.bound, self.depth = tensors, exact, x, bound, 0
        return self.inlined(type(self.module.value).forward, [self.module, x], {})

    def found(self, value: Any, path: Path) -> Any:
        """A value that was reached by a path, and is watched where it may change."""
        _refuse(isinstance(value, torch.Tensor), f"{_written(path)} is a tensor, and no parameter or buffer")
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
        _refuse(not isinstance(base, _Object), f"reads .{name}")
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
        _refuse(name == "training", "self.training")
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

    def call(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if isinstance(function, partial):
            function, args = function.func, [*function.args, *args]
        if isinstance(function, _Object):
            raise Refused(f"calls {_written(function.path)}")
        if function in _FUNCTIONS:
            return self.operation(function, _FUNCTIONS[function], args, kwargs)
        if isinstance(function, types.FunctionType) and function.__module__ != "torch.nn.functional":
            return self.inlined(function, args, kwargs)
        if function not in _PURE or any(isinstance(part, torch.Tensor | _Object) for part in _parts(args)):
            raise Refused(f"calls {function.__name__}")
        self.asks_rank |= function is len
        if function not in _OF_SIZES and any(isinstance(part, Size) for part in _parts(args)):
            _refuse(function is not int, f"calls {function.__name__} of a size")
            return Size(*args)
        return function(*args, **kwargs)

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
        _refuse(name == "squeeze" and (len(others) != 1 or args[0].shape[others[0]] != 1), "squeeze")
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
        _refuse(p != 2 or not isinstance(dim, int), "a norm of another order")
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
            raise Refused(f"{function.__name__} needs other arguments") from None
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

    def visit(self, node: Any) -> Any:
        self.line = getattr(node, "lineno", self.line)
        simple = _SIMPLE.get(type(node))
        return simple(self, node) if simple else super().visit(node)

    def generic_visit(self, node: Any) -> Any:
        raise Refused(_WORDS.get(type(node).__name__, type(node).__name__))

    def block(self, body: list[ast.stmt]) -> Any:
        return next((result for result in map(self.visit, body) if result is not _NOTHING), _NOTHING)

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
        _refuse(node.id not in space or vars(sys.modules.get(name, builtins)) is not space, f"no name {node.id}")
        return self.found(space[node.id], (name, node.id))

    def visit_Call(self, node: ast.Call) -> Any:
        function, args = self.visit(node.func), self.items(node.args)
        kwargs = {key.arg: self.visit(key.value) for key in node.keywords}
        _refuse(None in kwargs, "a call with **")
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
        _refuse(
            name not in _OPERATORS or any(isinstance(part, _Object | partial) for part in both), f"the operator {name}"
        )
        _refuse(is_of_tensors and name in ("FloorDiv", "Mod"), "a rest, or a division without it")
        value = _OPERATORS[name](left, right)
        if any(isinstance(part, Size) for part in both) and not isinstance(value, tuple | list):
            _refuse(type(value) is not int or name == "Pow", "arithmetic of a size")
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


_SIMPLE: dict[type, Any] = {
    ast.Expr: lambda self, node: (self.visit(node.value), _NOTHING)[1],
    ast.If: lambda self, node: self.block(node.body if self.truth(node.test) else node.orelse),
    ast.Return: lambda self, node: node.value and self.visit(node.value),
    ast.Assert: lambda self, node: _NOTHING if self.truth(node.test) else self.generic_visit(node),
    ast.Attribute: lambda self, node: self.attribute(self.visit(node.value), node.attr),
    ast.Tuple: lambda self, node: tuple(self.items(node.elts)),
    ast.List: lambda self, node: self.items(node.elts),
    ast.Slice: lambda self, node: slice(*(part and self.visit(part) for part in (node.lower, node.upper, node.step))),
    ast.IfExp: lambda self, node: self.visit(node.body if self.truth(node.test) else node.orelse),
}


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
    """What a path leads to now; the path itself where it leads nowhere."""
    value: Any = sys.modules.get(path[0]) if path[0] else module
    for step in path[1:]:
        value = dict.get(value, step[0], path) if isinstance(step, tuple) else getattr(value, step, path)
    return getattr(value, "__func__", value)
