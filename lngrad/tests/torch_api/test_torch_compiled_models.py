"""A whole model that torch compiles: Inductor, compiled autograd, a package of AOTInductor. DDP's is in tests/distributed."""

from __future__ import annotations

import shutil
from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch")

from compiled_models import OURS, WAYS, Transformer, batch, check_near, expected, gradients, loss_of, of  # noqa: E402
from native_ways import python_alone  # noqa: E402
from torch._inductor.utils import run_and_get_code  # noqa: E402

pytestmark = [
    pytest.mark.slow,  # Inductor compiles C++ for ten seconds and more
    pytest.mark.timeout(1800),
    pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler"),
]


@pytest.fixture(autouse=True)
def clean():
    yield
    torch.compiler.reset()


def test_the_comparison_sees_another_eps():
    with pytest.raises(AssertionError, match="tolerances"):
        check_near(expected(batch(), eps=1.00001e-5), expected(batch()))


@pytest.mark.parametrize("way", WAYS)
def test_a_training_step_in_one_graph(way):
    """For any number of words: one compilation, without a break."""
    model, context = of(way)
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    with context, torch._dynamo.config.patch(error_on_recompile=True):
        for words in (batch(), batch(5, 11)):
            loss, code = run_and_get_code(loss_of, compiled, words)
            loss.backward()
            check_near(gradients(model), expected(words))
            if words.shape[0] == 3:
                assert all(any(name in text for text in code) for name in OURS)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own, of every node
@pytest.mark.parametrize("native", [False, True], ids=["python", "native"])
@pytest.mark.parametrize("way", WAYS)
def test_compiled_autograd(way, native, request):
    """The backward of eager code becomes one graph, with the nodes that the forward has left, Python's or C++'s."""
    if native:
        request.getfixturevalue("native_code")
    model, context = of(way)
    with (
        nullcontext() if native else python_alone(),
        context,
        torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")),
    ):
        for words in (batch(), batch()):
            loss_of(model, words).backward()
            check_near(gradients(model), expected(words))


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")  # torch's own
@pytest.mark.parametrize("way", ["patch", "module"])
def test_a_package_of_aot_inductor(way, tmp_path):
    """Exported with any number of words, compiled ahead, loaded and called. An export does not see override()."""
    model, _ = of(way)
    with torch.no_grad():
        dims = {0: torch.export.Dim("rows", min=2, max=64), 1: torch.export.Dim("columns", min=2, max=64)}
        program = torch.export.export(model, (batch(),), dynamic_shapes=(dims,))
        assert {str(node.target).rpartition(".")[0] for node in program.graph.nodes} >= set(OURS)
        loaded = torch._inductor.aoti_load_package(
            torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
        )
        for words in (batch(), batch(5, 11)):
            check_near({"y": loaded(words)}, {"y": Transformer()(words)})
