"""The command line: reads options, calls one function below, prints. No arithmetic.

Every command imports what it needs when it runs, so that `lngrad --help` is quick and `import lngrad` stays light.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from lngrad import backends, get_num_threads, set_num_threads
from lngrad.cli.app import FAILED, REFUSED, app, command, fail, need
from lngrad.errors import LngradError

__all__ = ["app", "main"]


def main() -> None:
    """The console script."""
    # An end from outside unwinds like Ctrl-C does, so that no temporary file stays behind.
    signal.signal(signal.SIGTERM, _end)
    app(prog_name="lngrad")


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


# --- run ------------------------------------------------------------------------------------------------------------

PROGRESS_BYTES = 64 << 20  # of dx: less is done before a bar could be read


@command
def run(
    input: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            show_default=False,
            help="A .npz, a .safetensors or a folder of .npy with dy and x; mean with rstd or variance, or neither; "
            "and gamma if there is one.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="OUTPUT",
            show_default=False,
            help="Where dx, dgamma and dbeta go: a .npz, a .safetensors, or a folder (no suffix).",
        ),
    ],
    backend: Annotated[
        str | None, typer.Option(help="One of those that `lngrad info` lists.", show_default="the first available")
    ] = None,
    output_mask: Annotated[
        str, typer.Option(help="Which gradients are wanted, separated by commas.")
    ] = "dx,dgamma,dbeta",
    threads: Annotated[
        int | None, typer.Option(min=1, help="At most this many.", show_default="what the machine grants")
    ] = None,
    eps: Annotated[
        float | None, typer.Option(help="Added to the variance where rstd is computed.", show_default="1e-5")
    ] = None,
    normalized_dims: Annotated[
        int | None, typer.Option(help="How many of x's last dimensions.", show_default="as many as gamma has, or 1")
    ] = None,
    block_bytes: Annotated[
        int, typer.Option(min=1, help="Rows are computed in blocks of about this size; the bits do not depend on it.")
    ] = 256 << 20,
    soc: Annotated[
        str | None, typer.Option(help="The simulated SoC of --backend ascend_sim.", show_default="Ascend910B1")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUTPUT if it exists.")] = False,
) -> None:
    """Compute the gradients of arrays in a file, which may be larger than memory.

    Arrays are mapped and computed some rows at a time; OUTPUT appears whole or not at all. bfloat16 in .npy and .npz is
    NumPy's raw two-byte V2, in and out. Nothing is ever unpickled.
    """
    from time import perf_counter

    from lngrad.files.reading import read_tensors
    from lngrad.files.rowblocks import NAMES, RowBlocks
    from lngrad.files.writing import new_output
    from lngrad.plan import make_plan

    if threads is not None:
        set_num_threads(threads)
    if soc is not None:
        _use_soc(soc, backend)
    mask = _mask(output_mask)
    if output.exists() and input.exists() and output.samefile(input):
        fail(f"{output}: is the input, and is not replaced", REFUSED)
    start = perf_counter()
    tensors = read_tensors(input, NAMES)
    if tensors.others:
        typer.echo(f"lngrad: {input}: not used: {', '.join(tensors.others)}", err=True)
    try:
        blocks = RowBlocks(
            tensors.arrays, normalized_dims=normalized_dims, output_mask=mask, eps=eps, block_bytes=block_bytes
        )
        used = make_plan(blocks.problem, backend).backend
        specs = dict(zip(blocks.problem.out, blocks.problem.outputs(), strict=True))
        wanted = {name: (spec.shape, spec.dtype) for name, spec in specs.items() if spec is not None}
        with new_output(output, wanted, replace=force) as writer, _progress(blocks.problem) as advance:
            blocks.run(writer.append, backend=backend, advance=advance)
    except LngradError as error:
        about = "" if str(error).startswith((str(output), "backend")) else f"{input}: "
        fail(f"{about}{error}", REFUSED)
    results = ", ".join(f"{name} {shape} {dtype}" for name, (shape, dtype) in wanted.items())
    typer.echo(f"{output}: {results} ({used}, {perf_counter() - start:.2f} s)")


def _use_soc(name: str, backend: str | None) -> None:
    from lngrad.ascend.soc import use

    if backend != "ascend_sim":
        fail(f"--soc: expected --backend ascend_sim beside it, got {backend or 'no backend'}", REFUSED)
    use(name)


def _mask(text: str) -> tuple[bool, bool, bool]:
    names = [name.strip() for name in text.split(",")]
    wrong = [name for name in names if name not in ("dx", "dgamma", "dbeta")]
    if wrong:
        fail(f"--output-mask: expected some of dx,dgamma,dbeta, got {text!r}", REFUSED)
    return "dx" in names, "dgamma" in names, "dbeta" in names


def _progress(problem: Any) -> Any:
    """A context whose value is told how many more rows are done: a bar for large problems on a terminal."""
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from lngrad.dtypes import bytes_of

    large = problem.M * problem.N * bytes_of(problem.dtype) >= PROGRESS_BYTES
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.completed} of {task.total} rows"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )

    @contextmanager
    def bar() -> Any:
        with Progress(*columns, console=console, transient=True, disable=not (large and console.is_terminal)) as shown:
            task = shown.add_task("rows", total=problem.M)
            yield lambda rows: shown.advance(task, rows)

    return bar()


# --- info -----------------------------------------------------------------------------------------------------------


@command
def info(
    warm: Annotated[bool, typer.Option("--warm", help="Compile every kernel into the cache now.")] = False,
) -> None:
    """Show versions, backends, threads, caches; or compile the kernels ahead of their first use."""
    from lngrad.system.fallbacks import last_run
    from lngrad.system.machine import caches, huge_pages, processor, versions

    if warm:
        _warm()
        return
    facts = versions() | {f"backend {name}": state for name, state in backends().items()}
    facts |= {
        "processor": processor(),
        "caches": ", ".join(caches()) or "unknown",
        "threads": f"{get_num_threads()} (granted to this process; OMP_NUM_THREADS and set_num_threads lower it)",
        "huge pages": huge_pages(),
        "kernel cache": _kernel_cache(),
        "left to aten": last_run() or "nothing, in no run with lngrad.torch.override",
    }
    width = max(map(len, facts))
    for name, fact in facts.items():
        typer.echo(f"{name:{width}}  {fact}")


def _kernel_cache() -> str:
    if backends()["numba_cpu"] != "available":
        return "none, without numba"
    from lngrad.kernels.numba_cpu import cache

    if not cache.ENABLED:
        return f"none, as {cache.FOLDER} can't be written: kernels are compiled anew in every process"
    files = [file.stat().st_size for file in cache.FOLDER.iterdir() if file.is_file()]
    return f"{cache.FOLDER} ({len(files)} files, {sum(files) / 1e6:.1f} MB)"


def _warm() -> None:
    if backends()["numba_cpu"] != "available":
        fail(f"backend: numba_cpu is not available: {backends()['numba_cpu']}", REFUSED)
    from rich.console import Console
    from rich.progress import track

    from lngrad.kernels.numba_cpu.cache import ENABLED
    from lngrad.kernels.numba_cpu.warm import KERNELS, compile_kernel

    if not ENABLED:
        fail(f"the kernels can't be kept; kernel cache: {_kernel_cache()}", REFUSED)
    for kernel in track(KERNELS, "Compiling", console=Console(stderr=True)):
        compile_kernel(*kernel)
    typer.echo(f"{len(KERNELS)} kernels in the cache: {_kernel_cache()}")


# --- demo -----------------------------------------------------------------------------------------------------------


@command
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="A folder for the picture and the results.")] = Path(
        "lngrad-demo"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Of the data's split, the weights and the batches.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="How often every image is seen.")] = 30,
) -> None:
    """Train a network with LayerNorm on digits with lngrad's gradients, and check them.

    NumPy and these gradients alone, no autograd. Then the gradients of the trained network's activations are compared
    with float64 and, where torch is installed, with torch's. Ends with 1 if the network reads less than 95 % of the
    test images, or if a gradient is out of tolerance.
    """
    need("demo", scikit_learn="sklearn", matplotlib="matplotlib")
    from rich.console import Console
    from rich.progress import Progress

    from lngrad.demo.checks import DTYPES, check_dtype, layer_inputs
    from lngrad.demo.digits import train
    from lngrad.demo.report import PASS_ACCURACY, draw, summary, table, write_json

    output.mkdir(parents=True, exist_ok=True)
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("Training", total=epochs)
        training = train(epochs, seed, advance=lambda: progress.advance(bar))
        layers = layer_inputs(training)
        checks = [check_dtype(dtype, layers) for dtype in progress.track(DTYPES, description="Checking")]

    results = summary(training, checks, seed)
    Console().print(table(checks))
    typer.echo(
        f"Test accuracy {results['accuracy']:.1%} after {epochs} epochs; at least {PASS_ACCURACY:.0%} is asked for."
    )
    draw(output / "demo.png", training, checks)
    write_json(output / "results.json", results)
    typer.echo(f"Picture and numbers: {output / 'demo.png'}, {output / 'results.json'}")
    if not results["passed"]:
        fail("the demonstration failed; see above", FAILED)


# Their commands follow in the help.
from lngrad.cli import bench as cli_bench  # noqa: E402, F401
from lngrad.cli import tiling as cli_tiling  # noqa: E402, F401
from lngrad.cli.check import register  # noqa: E402

register(app)
