"""lngrad's kernels beside today's peers: layer norm, RMSNorm, and a sum with RMSNorm, forward and backward.

    python benchmarks/peers.py --json results/MACHINE-peers.json --newest PYTHON --ggml FOLDER --hub FOLDER
    python benchmarks/peers.py --prepare …                  one round of everything: it compiles and fills the caches

Rows are those of `lngrad bench`, and here those whose libraries are built from source. A process has all peers of its
environment in turns; processes follow one another: this interpreter's torch, and PYTHON's torch, JAX, oneDNN, ONNX Runtime,
ggml and hub kernel, with two threads and on one processor. The rounds of a job are as many as the minutes allow.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault(
    "TORCHINDUCTOR_CPP_DYNAMIC_THREADS", "1"
)  # one kernel for both numbers of threads: half the compiling
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "lngrad" / "src"), str(ROOT / "docs")]

from benchmark_tables import peers_table  # noqa: E402

from lngrad.bench.cases import Job, Settings  # noqa: E402
from lngrad.bench.cpu import CpuBench  # noqa: E402
from lngrad.bench.measure import REST, TURN  # noqa: E402
from lngrad.bench.records import append, read  # noqa: E402
from lngrad.bench.runner import ROOFLINE, Contest, Say, plan_of, run, why_not  # noqa: E402
from lngrad.check.implementations import Arguments, Implementation, NotApplicable, PreparedCall  # noqa: E402
from lngrad.check.implementations.hub import layer  # noqa: E402
from lngrad.check.implementations.ours import public_functions  # noqa: E402
from lngrad.core.threads import get_num_threads  # noqa: E402
from lngrad.support.dtypes import to_torch  # noqa: E402
from peer_libraries.rows import CPU_PEERS, all_of_jax  # noqa: E402

NORMS = ("layer_norm", "rms_norm", "add_rms_norm")
SHAPES = ((512, 768), (2048, 1024), (4096, 768), (8192, 2048), (4096, 4096))
DTYPES = ("float32", "bfloat16")
ROUNDS = (5, 15)  # of a job, at the least and at the most
MINUTES = 9.5
CHECKED_ROWS = 64  # whose results are compared with ours
PEERS = {"first": ("torch", "compile"), "newest": ("torch", "compile", "jax", "onednn", "onnxruntime", "ggml", "hub")}

Norm = Callable[[Any, Any, Any], Any]  # of x, residual or None, and gamma


def summand(a: Arguments) -> Any:
    return a.x if a.summand is None else a.summand


def forward_inputs(a: Arguments, convert: Callable[[Any], Any]) -> list[Any]:
    """x, residual and gamma of a forward."""
    return [None if array is None else convert(array) for array in (summand(a), a.residual, a.gamma)]


def cotangents(a: Arguments, convert: Callable[[Any], Any]) -> list[Any]:
    return [convert(array) for array in (a.dy, a.dtotal)[: 1 if a.residual is None else 2]]


# RMS normalization in torch and JAX, where a sum may come first: y, and the total.


def torch_norm(eps: float) -> Norm:
    from torch.nn.functional import rms_norm

    def norm(x: Any, residual: Any, gamma: Any) -> Any:
        total = x if residual is None else x + residual
        y = rms_norm(total, total.shape[-1:], gamma, eps)
        return (y,) if residual is None else (y, total)

    return norm


def torch_forward(a: Arguments) -> PreparedCall:
    return partial(torch_norm(a.eps), *forward_inputs(a, to_torch))


def torch_backward(a: Arguments) -> PreparedCall:
    """The derivative of the forward, whose graph is walked again and again."""
    import torch

    x, residual, gamma = leaves = forward_inputs(a, lambda array: to_torch(array).requires_grad_())
    results = torch_norm(a.eps)(*leaves)
    wanted = [leaf for leaf in (x, gamma, residual) if leaf is not None]
    return partial(torch.autograd.grad, results, wanted, cotangents(a, to_torch), retain_graph=True)


def compiled_forward(a: Arguments) -> PreparedCall:
    import torch

    torch._dynamo.reset()
    return partial(torch.compile(torch_norm(a.eps), dynamic=False), *forward_inputs(a, to_torch))


def compiled_backward(a: Arguments) -> PreparedCall:
    """torch's operator for the gradients, from the forward's rstd: Inductor decomposes it."""
    import torch

    gradients, shape = torch.ops.aten._fused_rms_norm_backward, list(a.normalized_shape)

    def backward(dy: Any, dtotal: Any, x: Any, rstd: Any, gamma: Any) -> Any:
        dx, dgamma = gradients(dy, x, shape, rstd, gamma, [True, True])
        return dx if dtotal is None else dx + dtotal, dgamma

    torch._dynamo.reset()
    arrays = (None if array is None else to_torch(array) for array in (a.dy, a.dtotal, a.x, a.rstd, a.gamma))
    return partial(torch.compile(backward, dynamic=False), *arrays)


def jax_norm(eps: float) -> Norm:
    import jax
    import jax.numpy as jnp

    def norm(x: Any, residual: Any, gamma: Any) -> Any:
        total = x if residual is None else x + residual
        wide = total.astype(jnp.float32)
        y = (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + eps) * gamma).astype(x.dtype)
        return (y,) if residual is None else (y, total)

    return norm


def jax_forward(a: Arguments) -> PreparedCall:
    all_of_jax()
    import jax

    forward, arrays = jax.jit(jax_norm(a.eps)), forward_inputs(a, jax.numpy.asarray)
    return lambda: jax.block_until_ready(forward(*arrays))


def jax_backward(a: Arguments) -> PreparedCall:
    all_of_jax()
    import jax

    x, residual, gamma = forward_inputs(a, jax.numpy.asarray)
    dys = tuple(cotangents(a, jax.numpy.asarray))
    _, pullback = jax.vjp(lambda x, gamma, residual: jax_norm(a.eps)(x, residual, gamma), x, gamma, residual)
    backward = jax.jit(lambda pullback, dys: pullback(dys))
    return lambda: jax.block_until_ready(backward(pullback, dys))


# The kernel of the Hugging Face hub: its operators, after an addition of torch's where there is a residual.


@cache
def hub_operators(folder: str) -> Any:
    return sys.modules[layer(folder).__module__.replace("layers", "_ops")].ops


def hub_forward(folder: str, a: Arguments) -> PreparedCall:
    if a.normalization.centred:
        raise NotApplicable("hub: it has RMSNorm alone")
    forward, (x, residual, gamma) = hub_operators(folder).apply_rms_norm, forward_inputs(a, to_torch)

    def call() -> Any:
        total = x if residual is None else x + residual
        return forward(total, gamma, a.eps)[0], total

    return call


def hub_backward(folder: str, a: Arguments) -> PreparedCall:
    if a.normalization.centred:
        raise NotApplicable("hub: it has RMSNorm alone")
    operators, x, gamma = hub_operators(folder), to_torch(a.x), to_torch(a.gamma)
    saved, (dy, *dtotal) = operators.apply_rms_norm(x, gamma, a.eps), cotangents(a, to_torch)

    def call() -> Any:
        dx, dgamma = operators.apply_rms_norm_backward(dy, x, gamma, *saved, a.eps, True, True)
        return dx + dtotal[0] if dtotal else dx, dgamma

    return call


# ggml: a graph is made once, as llama.cpp does it; its allocator lets results lie in place, and it fuses rms_norm and mul.


class Parameters(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class ComputePlan(ctypes.Structure):
    _fields_ = (
        ("work_size", ctypes.c_size_t), ("work_data", ctypes.c_void_p), ("threads", ctypes.c_int), ("pool", ctypes.c_void_p),
        ("abort", ctypes.c_void_p), ("abort_data", ctypes.c_void_p), ("use_ref", ctypes.c_bool),
    )  # fmt: skip


@cache
def ggml(folder: str) -> dict[str, Callable[..., Any]]:
    """Functions of ggml's C interface that give pointers, by name, and ggml_graph_plan."""
    libraries = [
        ctypes.CDLL(str(next(Path(folder).rglob(f"lib{name}.so"))), mode=ctypes.RTLD_GLOBAL)
        for name in ("ggml-base", "ggml-cpu")
    ]
    names = (
        "init", "new_tensor_2d", "new_tensor_1d", "norm", "rms_norm", "mul", "add", "new_graph", "build_forward_expand",
        "set_input", "set_output", "gallocr_new", "gallocr_alloc_graph", "backend_cpu_buffer_type", "get_data",
        "graph_plan", "graph_compute", "threadpool_params_init", "threadpool_new", "version", "free", "gallocr_free",
        "threadpool_free",
    )  # fmt: skip
    found = {}
    for name in names:
        found[name] = next(
            getattr(library, f"ggml_{name}") for library in libraries if hasattr(library, f"ggml_{name}")
        )
        found[name].restype = ctypes.c_void_p
    found["graph_plan"].restype, found["version"].restype = ComputePlan, ctypes.c_char_p
    return found


def ggml_forward(folder: str, a: Arguments) -> PreparedCall:
    """y of float32 alone."""
    if a.x.dtype != np.float32:
        raise NotApplicable(f"ggml: no {a.x.dtype.name}")
    call, pointer = ggml(folder), ctypes.c_void_p
    context = pointer(call["init"](Parameters(1 << 22, None, True)))
    tensors = {
        name: pointer(
            call["new_tensor_2d"](context, 0, ctypes.c_int64(a.N), ctypes.c_int64(a.M))
            if array.ndim == 2
            else call["new_tensor_1d"](context, 0, ctypes.c_int64(a.N))
        )
        for name, array in (("x", summand(a)), ("residual", a.residual), ("gamma", a.gamma), ("beta", a.beta))
        if array is not None
    }
    for tensor in tensors.values():
        call["set_input"](tensor)

    def operation(name: str, *arguments: Any) -> ctypes.c_void_p:
        return pointer(call[name](context, *arguments))

    total = tensors["x"] if a.residual is None else operation("add", tensors["x"], tensors["residual"])
    xhat = operation("norm" if a.normalization.centred else "rms_norm", total, ctypes.c_float(a.eps))
    y = operation("mul", xhat, tensors["gamma"])
    y = operation("add", y, tensors["beta"]) if a.normalization.centred else y
    graph = operation("new_graph")
    for result in (total, y) if a.residual is not None else (y,):
        call["set_output"](result)
    call["build_forward_expand"](graph, y)
    allocator = pointer(call["gallocr_new"](pointer(call["backend_cpu_buffer_type"]())))
    call["gallocr_alloc_graph"](allocator, graph)
    arrays = {"x": summand(a), "residual": a.residual, "gamma": a.gamma, "beta": a.beta}
    for name, tensor in tensors.items():
        if address := call["get_data"](tensor):  # none of what the graph does not use
            ctypes.memmove(address, arrays[name].ctypes.data, arrays[name].nbytes)
    settings = ctypes.create_string_buffer(4096)
    call["threadpool_params_init"](settings, get_num_threads())
    pool = pointer(call["threadpool_new"](settings))
    plan = call["graph_plan"](graph, get_num_threads(), pool)
    work = ctypes.create_string_buffer(max(plan.work_size, 1))
    plan.work_data = ctypes.addressof(work)
    compute, where, result = call["graph_compute"], ctypes.byref(plan), np.empty(0)
    address = call["get_data"](y)
    result = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (a.M, a.N))

    def forward(keep: Any = (plan, work)) -> tuple[Any, ...]:
        compute(graph, where)
        return (result,)

    for name, handle in (("threadpool_free", pool), ("gallocr_free", allocator), ("free", context)):
        weakref.finalize(forward, call[name], handle)
    return forward


def forward_alone(name: str) -> Callable[[Arguments], PreparedCall]:
    def backward(a: Arguments) -> PreparedCall:
        raise NotApplicable(f"{name}: it has no gradients of gamma")

    return backward


def by_norm(row: Implementation, forward: Any, backward: Any) -> Implementation:
    """A row of `lngrad bench` for layer normalization, and these for the others."""

    def chosen(plain: Any, other: Any) -> Callable[[Arguments], PreparedCall]:
        return lambda a: (plain if a.norm == "layer_norm" else other)(a)

    return replace(row, forward=chosen(row.forward, forward), backward=chosen(row.backward, backward))


def rows(ggml_folder: str, hub_folder: str) -> dict[str, Implementation]:
    found = {
        "torch": by_norm(CPU_PEERS["torch"], torch_forward, torch_backward),
        "compile": by_norm(CPU_PEERS["compile"], compiled_forward, compiled_backward),
        "jax": by_norm(CPU_PEERS["jax"], jax_forward, jax_backward),
        "onednn": CPU_PEERS["onednn"],
        "onnxruntime": CPU_PEERS["onnxruntime"],
    }
    if ggml_folder:
        found["ggml"] = Implementation(
            "ggml", forward_alone("ggml"), partial(ggml_forward, ggml_folder), package="ggml",
            version=lambda: ggml(ggml_folder)["version"]().decode(),
        )  # fmt: skip
    if hub_folder:
        command = ["git", "-C", hub_folder, "log", "-1", "--format=%h of %cs", "--", "."]
        found["hub"] = Implementation(
            "hub", partial(hub_backward, hub_folder), partial(hub_forward, hub_folder), needs="torch",
            package="kernels-community/rmsnorm", set_threads=CPU_PEERS["torch"].set_threads,
            version=lambda: subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip(),
        )  # fmt: skip
    return found


class PeersBench(CpuBench):
    """The scopes kernel and forward, of three norms, until a moment."""

    scopes = ("kernel", "forward")

    def __init__(self, known_peers: Mapping[str, Implementation], end: float | None) -> None:
        self.known_peers, self._end, self._left = known_peers, end, 0

    def jobs(self, settings: Settings, scope: str) -> list[Job]:
        op = "forward" if scope == "forward" else "backward"
        return [
            Job(M, N, dtype, op, norm)
            for norm in NORMS
            for M, N in settings.shapes or SHAPES
            for dtype in settings.dtypes
        ]

    def contest(
        self, settings: Settings, scope: str, job: Job, peers: Mapping[str, Implementation], say: Say
    ) -> Contest:
        """Without the roofline; with the peers' errors, and with as many rounds as there is time for."""
        start = time.monotonic()
        self._left = self._left or len(plan_of(self, settings))
        kept: list[Arguments] = []

        def heard(prepare: Any) -> Any:
            return prepare and (lambda a: (kept.append(a), prepare(a))[1])

        watched = {
            name: replace(peer, forward=heard(peer.forward), backward=heard(peer.backward))
            for name, peer in peers.items()
        }
        contest = super().contest(settings, scope, job, watched, say)
        calls = {name: call for name, call in contest.calls.items() if name != ROOFLINE}
        errors, taken = {}, 0.0
        right = expected(kept[0], job.op)
        for name, call in list(calls.items()):
            try:
                results = call()
            except Exception as reason:  # a peer's limits are its own
                say(f"{name}: {job.op} {job.dtype}: {type(reason).__name__}: {reason}")
                del calls[name]
                continue
            if results is not None:  # those of oneDNN lie where it was told
                results = results if isinstance(results, (tuple, list)) else (results,)
                errors[name] = float(f"{max(map(relative, results, right)):.2g}")
            before = time.perf_counter()
            call()
            seconds = time.perf_counter() - before
            taken += 2 * REST + seconds + max(seconds, TURN)
        rounds = settings.rounds
        if self._end is not None:
            spare = (self._end - start) / self._left - (time.monotonic() - start)
            rounds = int(min(max(spare / taken, ROUNDS[0]), ROUNDS[1]))
        self._left -= 1
        facts = contest.facts | {"error": errors}
        return replace(contest, calls=calls, rounds=rounds, facts=facts)


def expected(a: Arguments, op: str) -> list[Any]:
    """Ours: y; or dx and dgamma."""
    ours = public_functions("numba_cpu")
    if op == "forward":
        return [ours.forward(replace(a, x=summand(a)))().y]  # type: ignore[misc]
    grads = ours.backward(a)()
    return [grads.dx, grads.dgamma]


def relative(result: Any, right: Any) -> float:
    """The norm of the difference over the norm; of the first rows of what has rows."""
    got = result[:CHECKED_ROWS] if result.ndim == 2 else result
    got = got.detach().float().numpy() if hasattr(got, "detach") else np.asarray(got, np.float32)
    wanted = np.asarray(right[:CHECKED_ROWS] if right.ndim == 2 else right, np.float32)
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


def one_process(options: argparse.Namespace) -> None:
    """Time the peers of this interpreter's environment, with so many threads."""
    known = rows(options.ggml, options.hub)
    end = None if options.prepare else time.monotonic() + options.seconds
    bench = PeersBench(known, end)
    peers = tuple(name for name in PEERS[options.process] if name in known and name not in options.without)
    settings = Settings(bench.scopes, peers, tuple(options.dtypes), options.shapes, (options.threads,), rounds=1)
    for name in settings.peers:
        if reason := why_not(bench, name):
            print(reason, flush=True)
    for line in run(bench, settings, lambda text: print(text, flush=True)):
        append(options.json, [line])
        print(f"{line['norm']:13} {line['op']:9} {line['M']}x{line['N']} {line['dtype']}", line["ratio"], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the records go")
    parser.add_argument("--newest", default="", help="the interpreter of the environment with the newest peers")
    parser.add_argument("--ggml", default="", help="a folder in which ggml was built, Release, with shared libraries")
    parser.add_argument("--hub", default="", help="kernels-community/rmsnorm, checked out")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--prepare", action="store_true", help="one round of everything, without records")
    parser.add_argument("--without", nargs="*", default=(), help="peers to leave out; compile takes long in --prepare")
    parser.add_argument("--shapes", type=shape, nargs="*", help="512x768 and so on")
    parser.add_argument("--dtypes", nargs="*", default=DTYPES)
    parser.add_argument("--process", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.shapes = tuple(options.shapes or ()) or None
    if options.process:
        one_process(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "records"
        end, processes = time.monotonic() + 60 * options.minutes, []
        for threads in (2, 1):
            for name, python in (("newest", options.newest), ("first", sys.executable)):
                processes += [(name, python, threads)] if python else []
        weights = {"newest": 5, "first": 2}  # contestants cost time
        for number, (name, python, threads) in enumerate(processes):
            left = sum(weights[process] for process, *_ in processes[number:])
            seconds = (end - time.monotonic()) * weights[name] / left
            command = [python, __file__, *sys.argv[1:], "--process", name, "--threads", str(threads)]
            only = ["taskset", "-c", str(min(os.sched_getaffinity(0)))] if threads == 1 else []
            done = subprocess.run([*only, *command, "--seconds", str(seconds), "--json", str(found)], check=False)
            if done.returncode:
                print(f"{python}, {threads} threads: exit code {done.returncode}", flush=True)
        if options.json and not options.prepare:
            lines = read(found)
            print(peers_table(lines))
            options.json.write_text("[\n" + ",\n".join(map(json.dumps, lines)) + "\n]\n", "utf-8")


def shape(text: str) -> tuple[int, int]:
    M, N = map(int, text.split("x"))
    return M, N


if __name__ == "__main__":
    main()
