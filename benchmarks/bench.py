"""`lngrad bench` beside all peers, on CPUs and CUDA devices, of every norm that lngrad.torch has; and pictures of it.

python benchmarks/bench.py --scopes kernel,forward --peers torch,onednn --json benchmarks/results/MACHINE.jsonl
python benchmarks/bench.py --norm rms_norm --peers torch,llama,override
python benchmarks/bench.py --device cuda --scopes call,forward,model --peers torch,compile,liger
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from lngrad import backends
from lngrad.bench.runner import Bench, why_not
from lngrad.cli.bench import BenchOptions, settings_of, time_all
from lngrad.cli.signature import with_options
from lngrad.cli.terminal import REFUSED, UNFINISHED, choice, exit_code, fail, in_one_line, need, one_of, say
from lngrad.core.machine import BUSY

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@dataclass(frozen=True)
class PeersOptions(BenchOptions):
    """Those of `lngrad bench`; scopes of CUDA devices are call,forward,overhead,model, dtypes bfloat16,float32."""

    peers: Annotated[
        str,
        Option(
            help="Some of torch,onednn,compile,jax,mindspore,onnxruntime; with cuda, of torch,compile,liger,quack.",
            show_default="torch, and onednn where its wheel is installed",
        ),
    ] = ""
    norm: Annotated[
        str,
        choice(
            "layer_norm; or rms_norm, gemma_rms_norm, add_layer_norm, add_rms_norm, gated_rms_norm, rms_norm_of_gated, "
            "modulated_layer_norm, with the scopes forward,autograd,model and the peers layer_norm,separate,torch,override,"
            "llama,compile,compile_llama; with cuda no override, and overhead, liger and quack besides.",
            lambda: ("layer_norm", *import_module("peer_libraries.family").TIMED),
        ),
    ] = "layer_norm"
    device: Annotated[str, choice("cpu or cuda.", lambda: ("cpu", "cuda"))] = "cpu"
    plot: Annotated[Path | None, Option(help="Draw ratios and roofline, .svg or .png.", show_default="none")] = None


@with_options
def bench(options: PeersOptions) -> None:
    """Time lngrad's kernels in turns with peers and with the memory's own speed."""
    if options.plot is not None:
        need("plots", matplotlib="matplotlib")
    one_of("--device", options.device, ("cpu", "cuda"))
    if options.device == "cuda" and (reason := why_no_device()) is not None:
        fail(f"--device: {reason}", REFUSED)
    from peer_libraries import plots

    chosen = bench_of(options.device, options.norm)
    drawn = "call" if options.device == "cuda" else "kernel"
    settings = settings_of(chosen, options, options.peers)
    if options.plot is not None:
        try:
            plots.check_plot(settings, drawn, lambda name: why_not(chosen, name))
        except ValueError as error:
            fail(f"--{error}", REFUSED)
    lines = time_all(chosen, settings, options)
    if options.plot is not None:
        quiet = [line for line in lines if line["others"] <= BUSY]
        plots.plot([quiet or fail("--plot: not drawn: the machine is busy", UNFINISHED)], options.plot, drawn)
        say(f"picture written to {options.plot}")


def bench_of(device: str, norm: str) -> Bench:
    """The scopes of a device and a norm."""
    if norm != "layer_norm":
        from peer_libraries.family import TIMED, FamilyBench

        one_of("--norm", norm, ("layer_norm", *TIMED))
        if device == "cpu":
            return FamilyBench(norm)
    if device == "cpu":
        from peer_libraries.cpu import PeersBench

        return PeersBench()
    from peer_libraries import cuda

    return cuda.CudaBench() if norm == "layer_norm" else cuda.CudaFamilyBench(norm)


def why_no_device() -> str | None:
    """Why nothing can be timed on a GPU here, or None."""
    state = backends()["triton_gpu"]
    if state != "available":
        return f"expected a CUDA device for --device cuda, got none: {state}"
    if import_module("lngrad.gpu.kernels").INTERPRETED:
        return "expected compiled kernels for --device cuda, got TRITON_INTERPRET=1: unset it"
    return None


app.command()(in_one_line(bench))

if __name__ == "__main__":
    raise SystemExit(exit_code(app))
