"""The command `lngrad run`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from lngrad import backends, set_num_threads
from lngrad.cli.terminal import REFUSED, choice, fail, files_exist, known_norm, plain_norms, progress, say
from lngrad.errors import MAX_FOREIGN, LngradError
from lngrad.typing import Mask

MAX_NAMES = 8  # of arrays that are not used
PROGRESS_BYTES = 64 << 20  # of dx: less is done before a bar could be read


def run(
    input: Annotated[
        Path,
        Argument(
            metavar="INPUT",
            callback=files_exist,
            show_default=False,
            help="A .npz, a .safetensors or a folder of .npy with dy and x; mean with rstd or variance, or neither; "
            "gamma if there is one; and dtotal, which is added to dx, where x is the sum of a residual stream.",
        ),
    ],
    output: Annotated[
        Path,
        Option(
            "--output",
            "-o",
            metavar="OUTPUT",
            show_default=False,
            help="Where dx, dgamma and dbeta go: a .npz, a .safetensors, or a folder (no suffix).",
        ),
    ],
    backend: Annotated[
        str | None, choice("One of those that `lngrad info` lists.", backends, show_default="the first available")
    ] = None,
    output_mask: Annotated[str, Option(help="Which gradients are wanted, separated by commas.")] = "dx,dgamma,dbeta",
    threads: Annotated[
        int | None, Option(min=1, help="At most this many.", show_default="what the machine grants")
    ] = None,
    norm: Annotated[
        str, choice("layer_norm, rms_norm, gemma_rms_norm (1 + gamma) or zero_centred_layer_norm.", plain_norms)
    ] = "layer_norm",
    eps: Annotated[
        float | None,
        Option(help="Added to the variance where rstd is computed.", show_default="1e-5, of RMSNorm torch's"),
    ] = None,
    normalized_dims: Annotated[
        int | None, Option(help="How many of x's last dimensions.", show_default="as many as gamma has, or 1")
    ] = None,
    block_bytes: Annotated[
        int, Option(min=1, help="Rows are computed in blocks of about this size; the bits do not depend on it.")
    ] = 256 << 20,
    soc: Annotated[str | None, Option(help="With --backend ascend_sim: the simulated SoC.")] = None,
    force: Annotated[bool, Option("--force", help="Replace OUTPUT if it exists.")] = False,
    max_bytes: Annotated[
        int | None,
        Option(
            min=1,
            help="Refuse a larger file, or a .npz whose arrays are larger unpacked.",
            show_default="1 GiB of what a .npz has compressed",
        ),
    ] = None,
    sync: Annotated[
        bool,
        Option(
            "--sync/--no-sync",
            help="Bring OUTPUT to the disk before it gets its name, so that it survives a power cut.",
        ),
    ] = True,
) -> None:
    """Compute the gradients of arrays in a file, which may be larger than memory.

    Arrays are mapped and computed some rows at a time; OUTPUT appears whole or not at all. bfloat16
    in .npy and .npz is NumPy's raw two-byte V2, in and out. Nothing is ever unpickled.

    Example: lngrad run in.npz -o grads.npz
    """
    from time import perf_counter

    from rich.console import Console

    from lngrad.core.norms import NORMS
    from lngrad.core.plan import availability, make_plan
    from lngrad.files.reading import read_tensors
    from lngrad.files.rowblocks import NAMES, RowBlocks
    from lngrad.files.writing import new_output
    from lngrad.support.dtypes import bytes_of

    if threads is not None:
        set_num_threads(threads)
    if soc is not None:
        if backend != "ascend_sim":
            fail(f"--soc: expected --backend ascend_sim beside it, got {backend or 'no backend'}", REFUSED)
        if (state := availability(backend)) != "available":
            fail(f"--backend: {backend}: {state}", REFUSED)
        import_module("lngrad_ascend.soc").use(soc)
    known_norm(norm, plain_norms)
    mask = _mask(output_mask)
    if output.exists() and input.exists() and output.samefile(input):
        fail(f"{output}: is the input, and is not replaced", REFUSED)
    start = perf_counter()
    tensors = read_tensors(input, NAMES, max_bytes)
    if tensors.others:
        others = ", ".join(tensors.others[:MAX_NAMES])[:MAX_FOREIGN]
        more = f" and {len(tensors.others) - MAX_NAMES} more" if len(tensors.others) > MAX_NAMES else ""
        say(f"lngrad: {input}: not used: {others}{more}", err=True)
    try:
        blocks = RowBlocks(
            tensors.arrays, normalized_dims=normalized_dims, output_mask=mask, eps=eps, block_bytes=block_bytes,
            normalization=NORMS[norm].normalization,
        )  # fmt: skip
        used = make_plan(blocks.problem, backend).backend
        specs = dict(zip(blocks.problem.out, blocks.problem.outputs(), strict=True))
        wanted = {name: (spec.shape, spec.dtype) for name, spec in specs.items() if spec is not None}
        M, row_bytes = blocks.problem.M, blocks.problem.N * bytes_of(blocks.problem.dtype)
        bar = progress(Console(stderr=True), "rows", M, large=M * row_bytes >= PROGRESS_BYTES)
        with new_output(output, wanted, replace=force, sync=sync) as writer, bar as advance:
            blocks.run(writer.append, backend=backend, advance=advance)
    except LngradError as error:
        if str(error).startswith((str(output), "backend")):
            raise
        fail(f"{input}: {error}", REFUSED)
    results = ", ".join(f"{name} {shape} {dtype}" for name, (shape, dtype) in wanted.items())
    say(f"{output}: {results} ({used}, {perf_counter() - start:.2f} s)")


def _mask(text: str) -> Mask:
    names = [name.strip() for name in text.split(",")]
    wrong = [name for name in names if name not in ("dx", "dgamma", "dbeta")]
    if wrong:
        fail(f"--output-mask: expected some of dx,dgamma,dbeta, got {text!r}", REFUSED)
    return "dx" in names, "dgamma" in names, "dbeta" in names
