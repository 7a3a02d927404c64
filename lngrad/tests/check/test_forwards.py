"""Forwards by name: a trial finds their signature, right ones pass, wrong ones fail; and what a run tells programs."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

import lngrad.check
from lngrad.check.calls.kernel import here
from lngrad.check.implementations import find
from lngrad.check.implementations.hub import layer
from lngrad.check.implementations.users import imported
from lngrad.check.verdict import Run
from lngrad.core.norms import NORMS
from lngrad.errors import BackendUnavailable

torch = pytest.importorskip("torch")
KERNELS = Path(__file__).parent / "kernels"
sys.path.insert(0, str(KERNELS))
FEW = "[st]*l"  # small and tail

BENCHMARK = """
import torch

class Model(torch.nn.Module):
    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.num_features, self.eps = num_features, eps

    def forward(self, x):
        return x / torch.sqrt(torch.mean(x ** 2, dim=1, keepdim=True) + self.eps)

class ModelNew(Model):
    def forward(self, x):
        return x * torch.rsqrt((x * x).mean(1, keepdim=True) + self.eps)

class Wrong(Model):
    def forward(self, x):
        return x * torch.rsqrt((x * x).mean(1, keepdim=True) + self.eps).detach()

def get_inputs():
    return [torch.randn(4, 64, 8, 8)]

def get_init_inputs():
    return [64]
"""


@pytest.fixture(autouse=True)
def kernels_are_found(monkeypatch):
    monkeypatch.syspath_prepend(str(KERNELS))


@pytest.fixture
def files(tmp_path) -> Path:
    """Somebody's benchmark file, and a checkout of a kernel of the hub for all devices, right and wrong."""
    (tmp_path / "benchmark.py").write_text(BENCHMARK)
    hub = tmp_path / "hub_norm"
    (hub / "torch-ext" / "hub_norm").mkdir(parents=True)
    (hub / "build.toml").write_text('[general]\nname = "hub-norm"\n[torch-noarch]\n')
    (hub / "torch-ext" / "hub_norm" / "__init__.py").write_text("from . import layers\n")
    (hub / "torch-ext" / "hub_norm" / "layers.py").write_text(
        "import torch\nfrom ._ops import add_op_namespace_prefix\n\n"
        "class RMSNorm(torch.nn.Module):\n    weight: torch.Tensor\n    variance_epsilon: float\n\n"
        "    def forward(self, hidden_states):\n"
        "        return torch.nn.functional.rms_norm(\n"
        "            hidden_states, self.weight.shape, self.weight, self.variance_epsilon)\n\n"
        "class WrongNorm(RMSNorm):\n    def forward(self, hidden_states):\n"
        "        return super().forward(hidden_states) + 0.5 * (hidden_states - hidden_states.detach())\n"
    )
    return tmp_path


def shows_what_is_wrong(folder: Path, script: str, wrong: str, right: str) -> None:
    """It ends with an error of dx, as in the process of its own before, and with the right forward in that one's place well."""
    assert script.count(f"import {wrong} as") == 1
    (folder / "script.py").write_text(script)
    with pytest.raises(AssertionError, match=r"^dx"):
        runpy.run_path(str(folder / "script.py"))
    (folder / "script.py").write_text(script.replace(f"import {wrong} as", f"import {right} as"))
    runpy.run_path(str(folder / "script.py"))


def run_of(name: str, files: Path | None = None, **options) -> Run:
    return lngrad.check.run(name.replace("FILES", str(files)), **{"filter": FEW, "seed": 0, **options})


def run_at_hand(name: str, files: Path | None = None, **options) -> Run:
    """The same of what a name is, in this process: no other one imports torch, and no script is written."""
    name = name.replace("FILES", str(files))
    target = layer(name.removeprefix("hub:")) if name.startswith("hub:") else imported(name)
    return lngrad.check.run(target, **{"filter": FEW, "seed": 0, **options})


FORMS = [
    ("forwards:Norm", "rms_norm", "weight is weight, eps is variance_epsilon", "forwards:WrongNorm"),
    ("forwards:norm", "rms_norm", "weight is weight, eps is variance_epsilon", "forwards:wrong_norm"),
    ("forwards:plain", "layer_norm", "x is t, weight is a, bias is c, eps is d", "forwards:wrong_plain"),
    ("FILES/benchmark.py:ModelNew", "rms_norm", "as axis 1, eps is eps", "FILES/benchmark.py:Wrong"),
    ("hub:FILES/hub_norm:RMSNorm", "rms_norm", "eps is variance_epsilon", "hub:FILES/hub_norm:WrongNorm"),
    ("jax_forwards:norm", "layer_norm", "weight is scale, bias is bias, eps is eps", "jax_forwards:wrong_norm"),
    ("lngrad.jax:gated_rms_norm", "gated_rms_norm", "gate is gate, weight is gamma", None),
    ("lngrad.jax:modulated_layer_norm", "zero_centred_layer_norm", "weight is scale, bias is shift", None),
    ("torch.nn:LayerNorm", "layer_norm", "weight is weight, bias is bias, eps is eps", None),
    ("torch.nn.functional:rms_norm", "rms_norm", "shape is normalized_shape, weight is weight, eps is eps", None),
    ("forwards:added", "add_rms_norm", "weight is gamma, eps is eps; returns y and the total", None),
    ("forwards:deep_norm", "deep_norm", "alpha is alpha, eps is eps", "forwards:deep_norm_without_alpha_in_dx"),
    ("forwards:after_the_sum", "add_layer_norm", "residual is residual, weight is weight, bias is bias", None),
    ("forwards:gated", "gated_rms_norm", "weight is weight, gate is z, eps is eps", None),
    ("forwards:OfGated", "rms_norm_of_gated", "eps is variance_epsilon, gate is gate", "forwards:WrongOfGated"),
]


# One of each kind of name, and of what crosses the pipe, is tried and called in a process of its own, which imports torch.
AT_HAND = {"forwards:norm", "forwards:plain", "lngrad.jax:modulated_layer_norm", "torch.nn:LayerNorm",
           "torch.nn.functional:rms_norm", "forwards:deep_norm", "forwards:after_the_sum", "forwards:gated",
           "forwards:OfGated"}  # fmt: skip


@pytest.mark.parametrize(("right", "norm", "text", "wrong"), FORMS, ids=lambda item: str(item).rpartition("/")[2])
def test_every_form_is_called_as_a_trial_shows(files, right, norm, text, wrong):
    if "jax" in right:
        pytest.importorskip("jax")
    found = (run_at_hand if right in AT_HAND else run_of)(right, files)
    assert f"taken as {norm}: " in found.signature
    assert text in found.signature
    assert found.verdict == "PASS", found.mistakes
    if wrong is not None:
        assert run_at_hand(wrong, files).verdict == "FAIL"


@pytest.mark.parametrize(("forward", "name"), [
    ("deep_norm_without_alpha_in_dx", "alpha forgotten in the gradient of x"),
    ("deep_norm_with_alpha_in_both", "dx times alpha in the gradient of the residual alone"),
    ("a_total_that_is_detached", "dtotal forgotten"),
    ("dtotal_for_x_alone", "dtotal forgotten in the gradient of the residual alone"),
])  # fmt: skip
def test_gradients_of_x_and_the_residual_that_do_not_fit_are_named_by_what_is_wrong(forward, name):
    found = run_at_hand(f"forwards:{forward}", filter="=tail", fuzz=0)
    assert [mistake.name for mistake in found.mistakes] == [name], found.results


def test_a_wrong_forward_beside_right_gradients_fails_by_its_name():
    found = run_at_hand("forwards:ForwardTwiceTooLarge", filter="=64 by 64")
    assert [mistake.name for mistake in found.mistakes] == ["y 2 times"]
    assert [output.name for output in found.results[0].outputs if not output.passed] == ["y"]


def test_a_forward_alone_is_judged_with_its_statistics():
    found = run_at_hand("right:forward")
    assert found.signature.endswith("; returns y, mean and rstd; forward judged, no backward given")
    assert (found.verdict, [output.name for output in found.results[0].outputs]) == ("PASS", ["y", "mean", "rstd"])


def test_a_class_that_fixes_its_size_has_cases_of_it():
    found = run_at_hand("forwards:OfItsSize", filter="t*", fuzz=0)
    assert found.signature.endswith("; of 80 columns alone, which all cases have")
    assert (found.counts["passed"], found.restrictions[0].text) == (2, "more than one normalized axis")
    assert found.results[0].outputs[0].shape == (33, 80)


def test_float64_in_float32_and_no_columns_are_restrictions():
    found = run_at_hand("forwards:in_float32", filter="=float64", fuzz=0)
    assert [(item.text, item.cases) for item in found.restrictions] == [("computed in float32", 1)]
    found = run_at_hand("forwards:in_float32", filter="=no columns", fuzz=0)
    assert found.restrictions[0].reason.startswith("it takes no rows without columns: the forward took these inputs")


def test_what_a_backward_raises_is_said_with_its_place():
    found = run_at_hand("forwards:raising", filter="=tail", fuzz=0)
    assert found.mistakes[0].name == "backward raises"
    assert re.search(r"its backward raises KeyError: 'rstd' \(forwards.py:\d+\)$", found.results[0].reason)


@pytest.mark.slow
def test_sources_of_a_kernel_of_the_hub_are_compiled(files, monkeypatch):
    pytest.importorskip("tomllib")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(files / "compiled"))
    hub = files / "hub_norm"
    (hub / "build.toml").write_text(
        '[general]\nname = "hub-norm"\n[torch]\nsrc = ["torch-ext/binding.cpp"]\n'
        '[kernel.cpu]\nbackend = "cpu"\ninclude = ["cpu"]\nsrc = ["cpu/factor.h"]\n'
    )
    (hub / "cpu").mkdir()
    (hub / "cpu" / "factor.h").write_text("#define FACTOR 2\n")
    (hub / "torch-ext" / "binding.cpp").write_text(
        '#include <torch/library.h>\n#include <ATen/ops/mul.h>\n#include "registration.h"\n#include "factor.h"\n'
        "static at::Tensor twice(const at::Tensor& x) { return at::mul(x, FACTOR); }\n"
        "TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {\n"
        '  ops.def("twice(Tensor x) -> Tensor");\n'
        '  ops.impl("twice", c10::DispatchKey::CompositeImplicitAutograd, &twice);\n}\n'
        "REGISTER_EXTENSION(TORCH_EXTENSION_NAME)\n"
    )
    layers = hub / "torch-ext" / "hub_norm" / "layers.py"
    text = layers.read_text().replace("add_op_namespace_prefix", "ops")
    layers.write_text(
        text.replace("hidden_states, self.weight.shape", "ops.twice(hidden_states) / 2, self.weight.shape")
    )
    assert run_of("hub:FILES/hub_norm:RMSNorm", files).verdict == "PASS"
    (hub / "torch-ext" / "binding.cpp").write_text("#error not today\n")
    with pytest.raises(BackendUnavailable, match=r"hub: it does not compile: .*not today"):
        run_of("hub:FILES/hub_norm:RMSNorm", files)


def test_what_a_forward_refuses_is_a_line_for_each_restriction():
    found = run_of("forwards:Function", filter=None)
    assert found.verdict == "FAIL" or found.verdict == "INCONCLUSIVE"
    texts = {restriction.text: restriction.cases for restriction in found.restrictions}
    assert texts["N not a multiple of 32"] >= 40
    assert "gamma in another dtype than x" in texts
    assert len(texts) <= 5, texts
    assert sum(texts.values()) + 4 >= found.counts["skipped"]


def test_a_script_shows_the_mistake_of_a_function_of_autograd(tmp_path):
    assert run_at_hand("forwards:Function", filter="=64 by 64").verdict == "PASS"
    found = run_of("forwards:WrongFunction", filter="=64 by 64")
    assert found.verdict == "FAIL"
    mistake = next(item for item in found.mistakes if item.reproduction)
    assert mistake.name
    assert "lngrad" not in mistake.reproduction
    shows_what_is_wrong(tmp_path, mistake.reproduction, "WrongFunction", "Function")


def test_a_script_of_a_forward_in_jax_differentiates_it(tmp_path):
    pytest.importorskip("jax")
    (mistake,) = run_of("jax_forwards:wrong_norm", filter="=small").mistakes
    shows_what_is_wrong(tmp_path, mistake.reproduction, "wrong_norm", "norm")


def test_a_backward_may_call_gamma_its_weight():
    assert run_of("forwards:rms_backward", norm="rms_norm").verdict == "PASS"


@pytest.mark.parametrize(("name", "mistake"), [("Raises", "backward raises"), ("no_gradient", "no gradient")])
def test_a_forward_without_a_gradient_has_a_name(name, mistake):
    found = run_at_hand(f"forwards:{name}", norm="rms_norm", filter="*3*")
    assert {difference.name for difference in found.mistakes} == {mistake}


def test_a_function_at_hand_gives_the_same_object(monkeypatch):
    by_name, at_hand = (run("forwards:WrongNorm", filter="=small") for run in (run_of, run_at_hand))
    assert by_name.verdict == at_hand.verdict == "FAIL"
    assert [mistake.name for mistake in by_name.mistakes] == [mistake.name for mistake in at_hand.mistakes]
    assert json.dumps(at_hand.to_json())


def test_what_is_no_norm_is_told():
    found = find("forwards:Other")
    assert "in a trial its forward was off by" in found.signature.text
    assert set(found.norms) == set(NORMS)  # it may be judged as any
    with pytest.raises(BackendUnavailable, match="expected a function with a parameter dy, or a forward of x"):
        find("forwards:nothing")


@pytest.mark.parametrize(
    ("name", "eps", "right"),
    [("Written", 1e-4, True), ("WrittenLarge", 0.1, True), ("WrittenOdd", 6.4e-5, True), ("WrittenNone", 0.0, True),
     ("WrongVariance", 1e-4, False), ("WrongFactor", 1e-4, False), ("WrongOutside", None, False)],
)  # fmt: skip
def test_an_epsilon_in_the_code_is_found_or_is_not_named(name, eps, right):
    found = find(f"forwards:{name}")
    signature = found.signature
    assert signature.eps == eps
    assert signature.text.startswith("taken as layer_norm: x is x, weight is weight, bias is bias")
    assert (f"eps is {eps:g}" if eps is not None else "its eps is not clear") in signature.text
    assert (set(found.norms) == {"layer_norm"}) == right


@pytest.mark.parametrize(
    ("name", "mistake"), [("WrongVariance", "over N - 1"), ("WrongOutside", "eps outside the root")]
)
def test_a_wrong_forward_with_an_epsilon_in_the_code_has_its_name(name, mistake):
    found = run_at_hand(f"forwards:{name}", filter="=small")
    assert len(found.mistakes) == 1
    assert mistake in found.mistakes[0].name


def test_a_class_at_hand_chooses_the_norm_of_cases_in_files_and_has_a_command_that_runs(tmp_path):
    import forwards

    (file := tmp_path / "my cases.yaml").write_text("lngrad: 1\ncases:\n  - {name: few, shape: [6, 8]}\n")
    found = lngrad.check.run(forwards.WrongNorm, [file], seed=0, fuzz=1)
    assert (found.verdict, found.counts["failed"]) == ("FAIL", 2)
    command = "lngrad check --impl forwards:WrongNorm --norm rms_norm"
    assert found.command == f"{command} '{file}' --fuzz 1"
    assert found.results[0].command == f"{command} '{file}' --seed 0 --filter '=few'"


def test_layouts_are_handed_to_a_forward_in_this_process_too():
    import forwards

    found = lngrad.check.run(forwards.contiguous, fuzz=30, filter="fuzz*", seed=0)
    assert [restriction.text for restriction in found.restrictions] == ["x that is not contiguous"]
    assert here("numpy_cpu").signature is None


def test_json_and_sarif_tell_a_program_the_verdict(run, tmp_path, monkeypatch):
    monkeypatch.chdir(KERNELS)
    words = "check", "--impl", "forwards.py:WrongNorm", "--filter", "=small"
    result = run(*words, "--json", "-", "--sarif", str(tmp_path / "r.sarif"))
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert (answer["format"], answer["verdict"], answer["counts"]["failed"]) == (1, "FAIL", 1)
    assert answer["failures"][0]["where"][0]["result"] == "dx"
    assert answer["failures"][0]["where"][0]["tolerances"] > 1
    (item,) = json.loads((tmp_path / "r.sarif").read_text())["runs"][0]["results"]
    assert item["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "forwards.py"
    assert item["ruleId"] == answer["mistakes"][0]["code"] == "LN-X03"


TRANSFORMERS = {
    "llama.modeling_llama:LlamaRMSNorm": "rms_norm",
    "gemma.modeling_gemma:GemmaRMSNorm": "gemma_rms_norm",
    "t5.modeling_t5:T5LayerNorm": "rms_norm",
    "olmo.modeling_olmo:OlmoLayerNorm": "layer_norm",
    "cohere.modeling_cohere:CohereLayerNorm": "layer_norm",
}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_modules_of_transformers_need_no_wrapper(name):
    pytest.importorskip("transformers")
    found = run_of(f"transformers.models.{name}", filter="=small")
    assert f"taken as {TRANSFORMERS[name]}: " in found.signature
    assert found.verdict == "PASS", found.mistakes


@pytest.mark.parametrize(("name", "norm"), [("LayerNorm", "layer_norm"), ("RMSNorm", "rms_norm")])
def test_modules_of_flax_need_no_wrapper(name, norm):
    pytest.importorskip("flax")
    found = run_of(f"flax.linen:{name}")
    assert f"taken as {norm}: " in found.signature
    assert "weight is scale" in found.signature
    assert found.verdict == "PASS", found.mistakes


def test_a_wrong_module_of_flax_fails():
    pytest.importorskip("flax")
    found = run_of("flax_forwards:WrongNorm", filter="=small")
    assert [mistake.name for mistake in found.mistakes] == ["mean of dxhat missing"]


@pytest.mark.parametrize(("right", "wrong"), [
    ("lngrad.torch:modulated_layer_norm", "forwards:modulated_by_the_first_sample"),
    ("lngrad.jax:modulated_layer_norm", "jax_forwards:modulated_by_the_first_sample"),
])  # fmt: skip
def test_a_forward_with_a_scale_of_each_sample(right, wrong):
    """It is right where all rows have one scale."""
    if "jax" in right:
        pytest.importorskip("jax")
    assert run_of(right, norm="modulated_layer_norm").verdict == "PASS"
    assert run_at_hand(wrong).verdict == "PASS"
    found = run_at_hand(wrong, norm="modulated_layer_norm")
    assert (found.verdict, len(found.mistakes)) == ("FAIL", 1)


def test_a_residual_and_a_gate_are_refused_with_the_reason():
    with pytest.raises(BackendUnavailable, match=r"bias and eps; no norm has both a residual and a gate$"):
        run_of("forwards:added_and_gated")


def test_the_error_of_the_likeliest_call_is_told():
    with pytest.raises(BackendUnavailable, match=r"a call gave ValueError: not today \(forwards.py:\d+\)$"):
        run_of("forwards:refuses_all")
