"""docs/state.md names every module-level value that can change, and every lock; and nothing else."""

from __future__ import annotations

import ast
import re

from packages import ROOT, sources

ROW = re.compile(r"^\| `([\w/]+\.py)` \| `(\w+)` \|", re.MULTILINE)

EMPTY = (ast.Dict, ast.List, ast.Set)
# Calls at module level whose results do not change, by the last part of the function's name. Whatever else is called
# for a name in lower case, or one of CHANGES for any name, counts as state.
CONSTANT = {"TypeVar", "compile", "frozenset", "namedtuple", "njit", "errstate", "dtype", "constexpr", "dataclass", "Struct",
            "MappingProxyType", "attrgetter", "itemgetter", "contextmanager", "getLogger", "NewType", "partial", "CFUNCTYPE",
            "IntType", "signature"}  # fmt: skip
CHANGES = {"dict", "list", "set", "deque", "Counter", "defaultdict", "OrderedDict", "WeakSet", "WeakKeyDictionary",
           "WeakValueDictionary", "Lock", "RLock", "Condition", "Event", "local", "ContextVar", "_references", "_data_offset",
           "_stamp", "_target", "_writable", "_folder", "DispatchKeySet"}  # fmt: skip
# Public singletons without fields: the graph ops.
NO_STATE = {
    ("lngrad_ascend/graph/layer_norm_grad.py", "LayerNormGrad"),
    ("lngrad_ascend/graph/layer_norm_grad.py", "LayerNormGradV3"),
    ("lngrad_ascend/referee.py", "acl"),  # modules
    ("lngrad_ascend/referee.py", "aclnn"),
}


def last_name(node):
    return ast.unparse(node).split("(")[0].rpartition(".")[2]


def state_of(text):
    """The names in a module that hold what outlives a call."""
    tree = ast.parse(text)
    found = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            decorators = {
                last_name(decorator.func if isinstance(decorator, ast.Call) else decorator)
                for decorator in node.decorator_list
            }
            if decorators & {"cache", "lru_cache"}:
                found.add(node.name)
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        (target, *_) = node.targets if isinstance(node, ast.Assign) else [node.target]
        if not isinstance(target, ast.Name) or target.id == "__all__":
            continue
        if isinstance(node.value, EMPTY):
            if not (node.value.keys if isinstance(node.value, ast.Dict) else node.value.elts):
                found.add(target.id)
        elif isinstance(node.value, ast.Call):
            called = last_name(node.value.func)
            if called in CHANGES or (target.id.islower() and called not in CONSTANT):
                found.add(target.id)
    return found


def test_the_page_is_complete_and_true():
    here = {(file, name) for file, path in sources() for name in state_of(path.read_text("utf-8"))}
    page = set(ROW.findall((ROOT / "docs" / "state.md").read_text("utf-8")))
    assert here - NO_STATE - page == set(), "docs/state.md lacks these"
    assert page - here == set(), "docs/state.md has rows for what is not there"


# What a thread can wait for, by the last part of the name of what makes it.
WAITED_FOR = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Event", "Barrier", "Queue", "LifoQueue",
              "PriorityQueue", "SimpleQueue", "fork_safe_lock"}  # fmt: skip
LOCK_ROW = re.compile(r"^\| `([\w/]+\.(?:py|c|h|cpp))`: `(\w+)` \| `(\w+)`", re.MULTILINE)
IN_C = re.compile(
    r"\b(?:std::)?(pthread_(?:mutex|once|cond|rwlock|spinlock)_t|sem_t|\w*mutex|once_flag)\s+(\w+)\s*[;={]"
)
NO_LOCKS = {
    ("cpu/workers.py", "_semaphore", "Semaphore"),  # a class of ours; its lock has a row
}


def locks_of(tree):
    """(name, kind, whether it is a module's own) of what threads can wait for: attributes, variables and classes."""
    found = set()
    for node in ast.walk(tree):
        of_module = node in getattr(tree, "body", ())
        if isinstance(node, ast.ClassDef):
            found |= {(node.name, last_name(base), False) for base in node.bases if last_name(base) in WAITED_FOR}
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            called = [call.func for call in ast.walk(node.value) if isinstance(call, ast.Call)]
            kinds = {last_name(function) for function in called} & WAITED_FOR
            if kinds:
                target = node.targets[-1] if isinstance(node, ast.Assign) else node.target
                found |= {(re.findall(r"\w+", ast.unparse(target))[-1], kind, of_module) for kind in kinds}
    return found


def test_every_lock_is_fork_safe_and_judged():
    """A lock of a module is fork_safe_lock(); the row of another one says why a forked child does not need it."""
    here = {(file, *lock) for file, path in sources() for lock in locks_of(ast.parse(path.read_text("utf-8")))}
    assert {kind for _, _, kind, of_module in here if of_module} == {"fork_safe_lock"}
    names = {(file, name, kind) for file, name, kind, _ in here} | {
        (file, name, kind)
        for file, path in sources("*.[ch]*")
        if path.suffix in (".c", ".h", ".cpp")
        for kind, name in IN_C.findall(path.read_text("utf-8"))
    }
    page = set(LOCK_ROW.findall((ROOT / "docs" / "state.md").read_text("utf-8")))
    assert names - NO_LOCKS - page == set(), "docs/state.md lacks these under Locks"
    assert page - names == set(), "docs/state.md has rows for what is not there"
    assert locks_of(ast.parse("_lock = threading.Lock()")) == {("_lock", "Lock", True)}
    hidden = "class A:\n    gate: Any = field(default_factory=lambda: Condition())"
    assert locks_of(ast.parse(hidden)) == {("gate", "Condition", False)}
    assert IN_C.findall("static std::mutex lock;\nstd::once_flag once{};") == [("mutex", "lock"), ("once_flag", "once")]
