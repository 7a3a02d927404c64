"""The command `lngrad demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lngrad.cli.app import FAILED, fail, need

NEXT = """
Next:
  lngrad check --impl MODULE:FUNCTION    is a kernel of yours right?
  lngrad bench --quick                   how fast is this machine, next to torch?
  lngrad info                            what else can be installed, and what for"""


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="A folder for the picture and the results.")] = Path(
        "lngrad-demo"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Of the data's split, the weights and the batches.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="How often every image is seen.")] = 30,
) -> None:
    """Train a network with LayerNorm on digits with lngrad's gradients, and check them.

    NumPy and these gradients alone, no autograd. Then the gradients of the trained network's
    activations are compared with float64 and, where torch is installed, with torch's. Ends with 1
    if the network reads less than 95 % of the test images, or if a gradient is out of tolerance.

    Example: lngrad demo --epochs 8
    """
    need("demo", scikit_learn="sklearn", matplotlib="matplotlib")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from lngrad.cli.demo_checks import DTYPES, FIRST_CALLS, check_dtype, layer_inputs
    from lngrad.cli.demo_digits import train
    from lngrad.cli.demo_report import PASS_ACCURACY, draw, summary, table, write_json

    output.mkdir(parents=True, exist_ok=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for call in progress.track(FIRST_CALLS, description="Compiling, once per machine"):
            call()
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
    typer.echo(NEXT)
