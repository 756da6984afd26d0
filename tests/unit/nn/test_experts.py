"""Experts in tensors of three dimensions: found by what their module does, quantised, saved, loaded, trained around."""

from __future__ import annotations

import copy
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[1] / "quant"))
import hf_experts  # noqa: E402
from checkpoint_writers import write_mxfp4  # noqa: E402
from hf_experts import (  # noqa: E402
    EXPERTS,
    HIDDEN,
    INNER,
    ROUTED,
    Block,
    GptOssExperts,
    GraniteMoeParallelExperts,
    HYV4Experts,
    LimitedExperts,
    Llama4TextExperts,
    MixtralExperts,
    NemotronHExperts,
)

import tilewright  # noqa: E402
from tilewright.checkpoints import save_safetensors  # noqa: E402
from tilewright.errors import CannotQuantize, MissingTensor, WrongArgumentShape  # noqa: E402
from tilewright.matmul import grouped_matmul, quant_bmm  # noqa: E402
from tilewright.nn import Experts, ExpertWeights, Linear  # noqa: E402
from tilewright.quant import quantize as quantize_array  # noqa: E402

SCHEME = "int8-g16"


def block(kind: Any, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return Block(kind()).eval()


def tokens(count: int = 7) -> Any:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(1))


def rounded(model: Any, quantised: Any) -> Any:
    """The float model with the numbers that the quantised one has."""
    made = copy.deepcopy(model)
    made.up.weight.data = quantised.up.dequantize()
    for name in quantised.experts.names:
        dense = torch.stack([torch.from_numpy(one.to_dense()) for one in getattr(quantised.experts, name)]).float()
        own = getattr(made.experts, name)
        own.data = dense if own.shape == dense.shape else dense.transpose(1, 2)
    return made


def close(found: Any, expected: Any, part: float = 2e-5) -> None:
    assert (found - expected).abs().max() <= part * expected.abs().max()


@pytest.mark.parametrize("kind", ROUTED)
def test_a_module_is_replaced_by_what_computes_alike(kind: Any) -> None:
    model = block(kind)
    quantised = tilewright.quantize(copy.deepcopy(model), SCHEME)
    assert isinstance(quantised.experts, Experts) and isinstance(quantised.up, Linear)
    assert isinstance(quantised.router, torch.nn.Linear)
    with torch.no_grad():
        x = tokens()
        close(quantised(x), rounded(model, quantised)(x))
        close(quantised(x), model(x), 0.05)
        # No experts for anybody but one, and batches of sequences where the module takes them.
        if kind is MixtralExperts:
            index = torch.full((3, 1), 2)
            close(
                quantised.experts(x[:3], index, torch.ones(3, 1)),
                rounded(model, quantised).experts(x[:3], index, torch.ones(3, 1)),
            )
            assert quantised.experts(x[:0], index[:0], torch.ones(0, 1)).shape == (0, HIDDEN)


def test_a_gate_of_the_module_s_own_is_applied_to_large_numbers_too() -> None:
    model = block(HYV4Experts)
    model.experts.gate_up_proj.data *= 100
    quantised, x = tilewright.quantize(copy.deepcopy(model), SCHEME), tokens()
    assert not [name for name, one in quantised.experts.act_fn.__self__.named_parameters() if one.ndim == 3]
    with torch.no_grad():
        close(quantised(x), rounded(model, quantised)(x))


def test_expert_numbers_behind_the_last_are_of_another_machine() -> None:
    quantised = tilewright.quantize(block(MixtralExperts), SCHEME).experts
    x, factors = tokens(3), torch.ones(3, 2)
    index = torch.tensor([[0, EXPERTS], [EXPERTS, EXPERTS], [1, 2]])
    with torch.no_grad():
        found = quantised(x, index, factors)
        assert (found[1] == 0).all() and found.isfinite().all()
        close(found[:1], quantised(x[:1], index[:1, :1], factors[:1, :1]))


def test_arguments_by_name_come_in_any_order() -> None:
    quantised = tilewright.quantize(block(MixtralExperts), SCHEME).experts
    x, index, factors = tokens(3), torch.tensor([[0, 3], [2, 1], [1, 2]]), torch.rand(3, 2)
    with torch.no_grad():
        found = quantised(x, top_k_weights=factors, top_k_index=index)
        assert torch.equal(found, quantised(x, index, factors))


def test_rows_in_runs() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(GraniteMoeParallelExperts())
    weight = model[0].weight.detach().clone()
    quantised = tilewright.quantize(model, SCHEME)
    assert isinstance(quantised[0], ExpertWeights)
    x, sizes = tokens(9), [3, 0, 4, 2]
    found = quantised[0](x, sizes)
    close(found, torch.cat([part @ own.T for part, own in zip(x.split(sizes), weight)]), 0.05)
    close(torch.nn.functional.linear(x[:3], quantised[0][0]), found[:3])


@pytest.mark.parametrize("kind", [MixtralExperts, GptOssExperts])
def test_copies_and_state_dicts(kind: Any) -> None:
    first, other = (tilewright.quantize(block(kind, seed), SCHEME) for seed in (0, 1))
    x = tokens()
    with torch.no_grad():
        expected = first(x)
        assert not torch.equal(other(x), expected)
        missing = other.load_state_dict(first.state_dict())
        assert not missing.missing_keys and torch.equal(other(x), expected)
        assert torch.equal(copy.deepcopy(first)(x), expected)
        assert torch.equal(pickle.loads(pickle.dumps(first))(x), expected)
    state = {key: value for key, value in first.state_dict().items() if not key.startswith("experts.down_proj.2.")}
    with pytest.raises(RuntimeError, match=r"experts\.down_proj\.2\.qweight"):
        other.load_state_dict(state)
    half = copy.deepcopy(first).half()
    with torch.no_grad():
        close(half(x.half()).float(), expected, 0.02)


def test_gradients_pass_through() -> None:
    quantised = tilewright.quantize(block(MixtralExperts), SCHEME)
    model = rounded(block(MixtralExperts), quantised)
    grads = []
    for one in (quantised, model):
        x = tokens().requires_grad_()
        (one(x) ** 2).sum().backward()
        grads.append((x.grad, one.router.weight.grad))
    for found, expected in zip(*grads):
        close(found, expected, 1e-4)


def test_compiled_as_eager() -> None:
    quantised = tilewright.quantize(block(MixtralExperts), SCHEME)
    with torch.no_grad():
        compiled = torch.compile(quantised, backend="eager", fullgraph=True)
        close(compiled(tokens()), quantised(tokens()))


def test_the_functions_give_gradients_and_are_operators() -> None:
    made = ExpertWeights(
        [quantize_array(np.random.default_rng(n).standard_normal((24, 32)), "int4", group=16) for n in range(3)]
    )
    x, sizes = torch.randn(9, 32, requires_grad=True), torch.tensor([2, 3, 4])
    dense = torch.stack([torch.from_numpy(one.to_dense()).float() for one in made.weight])
    expected = torch.cat([part @ own.T for part, own in zip(x.split([2, 3, 4]), dense)])
    (slope,) = torch.autograd.grad(expected.square().sum(), x)
    calls = (lambda x: grouped_matmul(x, made.weight, sizes), lambda x: grouped_matmul(x, made.weight, [2, 3, 4]))
    for call in (*calls, *(torch.compile(one, fullgraph=True, backend="aot_eager") for one in calls)):
        found = call(x)
        close(found, expected)
        close(torch.autograd.grad(found.square().sum(), x)[0], slope)
    batch = x.detach().reshape(3, 3, 32)
    whole = torch.compile(lambda x: quant_bmm(x, made.weight), fullgraph=True, backend="aot_eager")
    close(whole(batch), batch @ dense.mT)
    twin = copy.deepcopy(made.weight)
    close(torch.compile(lambda x: grouped_matmul(x, twin, sizes), backend="aot_eager")(x), expected)


def test_autocast_reaches_experts() -> None:
    torch.manual_seed(0)
    made, x = tilewright.quantize(block(Llama4TextExperts), SCHEME).experts, torch.randn(2 * EXPERTS, HIDDEN)
    seen = []
    made.gate_up_proj.register_forward_hook(lambda module, given, result: seen.append(result.dtype))
    with torch.no_grad():
        expected = made(x.bfloat16())
        with torch.autocast("cpu", torch.bfloat16):
            found = made(x)
    assert seen == [torch.bfloat16] * 2
    torch.testing.assert_close(found, expected)


def test_a_module_that_computes_otherwise_is_left_alone() -> None:
    class Scaled(MixtralExperts):
        def forward(self, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
            return 2.0 * super().forward(hidden_states, top_k_index, top_k_weights)

    model = block(Scaled)
    with pytest.warns(UserWarning, match="2 tensors of experts stay as they are, experts.gate_up_proj among them"):
        assert isinstance(tilewright.quantize(model, SCHEME).experts, Scaled)
    for kind in (NemotronHExperts, LimitedExperts):
        with pytest.warns(UserWarning, match="2 tensors of experts stay as they are"):
            assert isinstance(tilewright.quantize(block(kind), SCHEME).experts, kind)
    skipped = block(MixtralExperts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert isinstance(tilewright.quantize(skipped, SCHEME, skip="experts").experts, MixtralExperts)


@pytest.mark.parametrize("kind", [MixtralExperts, GptOssExperts])
def test_a_converted_checkpoint_fills_the_model(kind: Any, tmp_path: Path) -> None:
    """Tensors of all experts become weights of each, under the names that mxfp4 experts have; those fill the module."""
    model = block(kind)
    save_safetensors(
        tmp_path / "model.safetensors", {name: t.detach().numpy() for name, t in model.state_dict().items()}
    )
    done = tilewright.convert_checkpoint(tmp_path / "model.safetensors", tmp_path / "ours", SCHEME)
    assert done.weights == 2 * EXPERTS + 1
    loaded = tilewright.load_quantized(block(kind, 5), tmp_path / "ours")
    assert isinstance(loaded.experts, Experts)
    with torch.no_grad():
        close(loaded(tokens()), tilewright.quantize(model, SCHEME)(tokens()), 1e-6)


def test_gpt_oss_in_mxfp4_fills_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks, scales and biases of all experts, as the checkpoint of that model has them."""
    monkeypatch.setattr(hf_experts, "INNER", 64)
    model, rng = block(GptOssExperts), np.random.default_rng(0)
    state = {name: t.detach().numpy() for name, t in model.state_dict().items() if "_proj" not in name}
    for name, (rows, columns) in {"gate_up_proj": (128, HIDDEN), "down_proj": (HIDDEN, 64)}.items():
        written = [write_mxfp4(rng, rows, columns) for _ in range(EXPERTS)]
        for part in ("_blocks", "_scales"):
            state[f"experts.{name}{part}"] = np.stack([one.tensors[part] for one in written])
        state[f"experts.{name}_bias"] = getattr(model.experts, f"{name}_bias").detach().numpy()
        getattr(model.experts, name).data = torch.from_numpy(np.stack([one.weight.T for one in written])).float()
    save_safetensors(tmp_path / "model.safetensors", state)
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "mxfp4"}}')
    loaded = tilewright.load_quantized(block(GptOssExperts, 5), tmp_path)
    with torch.no_grad():
        close(loaded(tokens()), model(tokens()))


def test_gpt_oss_of_mlx_fills_the_model(tmp_path: Path) -> None:
    """Gate and up apart, words, scales and biases of all experts in one tensor each."""
    model, rng = block(GptOssExperts), np.random.default_rng(0)
    state = {name: t.detach().numpy() for name, t in model.state_dict().items() if "_proj" not in name}
    for name, parts in {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.items():
        K, rows = getattr(model.experts, name).shape[1:]
        codes, scales = (
            rng.integers(0, 256, (EXPERTS, rows, K)).astype(np.uint8),
            rng.uniform(0.001, 0.002, (EXPERTS, rows, K // 8)).astype(np.float16),
        )
        added = -128 * scales
        numbers = codes * np.repeat(scales.astype(float), 8, 2) + np.repeat(added.astype(float), 8, 2)
        getattr(model.experts, name).data = torch.from_numpy(numbers.swapaxes(1, 2)).float()
        for place, part in enumerate(parts):
            of = slice(place, None, len(parts))
            arrays = {"weight": codes.view(np.uint32)[:, of], "scales": scales[:, of], "biases": added[:, of]}
            arrays["bias"] = getattr(model.experts, f"{name}_bias").detach().numpy()[:, of]
            state |= {f"experts.{part}.{end}": np.ascontiguousarray(one) for end, one in arrays.items()}
    save_safetensors(tmp_path / "model.safetensors", state)
    (tmp_path / "config.json").write_text('{"quantization": {"bits": 8, "group_size": 8}}')
    tilewright.convert_checkpoint(tmp_path, tmp_path / "ours")
    for path in (tmp_path, tmp_path / "ours"):
        loaded = tilewright.load_quantized(block(GptOssExperts, 5), path)
        with torch.no_grad():
            close(loaded(tokens()), model(tokens()))


def test_fp8_of_fbgemm_fills_llama_4(tmp_path: Path) -> None:
    """transformers' ``[experts, K, N]`` with a scale a column: ``[experts, 1, N]`` of the first, ``[experts, N, 1]`` of the second."""
    model, rng = block(Llama4TextExperts), np.random.default_rng(0)
    state = {name: t.detach().numpy() for name, t in model.state_dict().items() if "_proj" not in name}
    for name, last in (("gate_up_proj", False), ("down_proj", True)):
        shape = getattr(model.experts, name).shape
        codes = rng.standard_normal(shape).astype(ml_dtypes.float8_e4m3fn)
        scales = rng.uniform(0.1, 0.2, (EXPERTS, 1, shape[2])).astype(np.float32)
        getattr(model.experts, name).data = torch.from_numpy(codes.astype(float) * scales).float()
        state |= {f"experts.{name}": codes, f"experts.{name}_scale": scales.swapaxes(1, 2) if last else scales}
    state = {name: np.ascontiguousarray(one) for name, one in state.items()}
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "fbgemm_fp8"}}')
    save_safetensors(tmp_path / "model.safetensors", state)
    tilewright.convert_checkpoint(tmp_path, tmp_path / "ours")
    for path in (tmp_path, tmp_path / "ours"):
        loaded = tilewright.load_quantized(block(Llama4TextExperts, 5), path)
        with torch.no_grad():
            close(loaded(tokens()), model(tokens()))


@pytest.mark.parametrize("kind", [MixtralExperts, Llama4TextExperts])
def test_fp8_of_all_experts_in_one_tensor_fills_the_model(kind: Any, tmp_path: Path) -> None:
    """transformers' ``gate_up_proj`` with ``gate_up_proj_scale_inv``, rows of weights in rows whichever way the model has them;
    columns in rows are refused."""
    model, rng = block(kind), np.random.default_rng(0)
    turned = kind is Llama4TextExperts
    state = {name: t.detach().numpy() for name, t in model.state_dict().items() if "_proj" not in name}
    for name in ("gate_up_proj", "down_proj"):
        shape = getattr(model.experts, name).shape
        rows, columns = shape[:0:-1] if turned else shape[1:]
        codes = rng.standard_normal((EXPERTS, rows, columns)).astype(ml_dtypes.float8_e4m3fn)
        scales = rng.uniform(0.1, 0.2, (EXPERTS, -(-rows // 8), -(-columns // 16))).astype(np.float32)
        wide = scales.repeat(8, 1).repeat(16, 2)[:, :rows, :columns].astype(float)
        numbers = torch.from_numpy(codes.astype(float) * wide).float()
        getattr(model.experts, name).data = numbers.mT.contiguous() if turned else numbers
        state |= {f"experts.{name}": codes, f"experts.{name}_scale_inv": scales}
    config = '{"quantization_config": {"quant_method": "fp8", "weight_block_size": [8, 16]}}'
    (tmp_path / "config.json").write_text(config)
    save_safetensors(tmp_path / "model.safetensors", state)
    tilewright.convert_checkpoint(tmp_path, tmp_path / "ours")
    for path in (tmp_path, tmp_path / "ours"):
        loaded = tilewright.load_quantized(block(kind, 5), path)
        with torch.no_grad():
            close(loaded(tokens()), model(tokens()))
    for name in ("gate_up_proj", "down_proj"):
        state[f"experts.{name}"] = np.ascontiguousarray(state[f"experts.{name}"].swapaxes(1, 2))
        state[f"experts.{name}_scale_inv"] = np.ones((EXPERTS, 1, 1), np.float32)
    save_safetensors(tmp_path / "model.safetensors", state)
    with pytest.raises(WrongArgumentShape, match=r"in the checkpoint, .* in the model"):
        tilewright.load_quantized(block(kind, 5), tmp_path)


@pytest.mark.parametrize("names", [("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")])
def test_a_checkpoint_with_a_layer_for_each_expert_fills_the_model(names: tuple[str, str, str], tmp_path: Path) -> None:
    model = block(MixtralExperts)
    state = {name: t.detach().numpy() for name, t in model.state_dict().items() if "experts" not in name}
    both, down = (getattr(model.experts, name).detach().numpy() for name in ("gate_up_proj", "down_proj"))
    for e in range(EXPERTS):
        for name, array in zip(names, (both[e, :INNER], both[e, INNER:], down[e])):
            state[f"experts.{e}.{name}.weight"] = np.ascontiguousarray(array)
    save_safetensors(tmp_path / "model.safetensors", state)
    tilewright.convert_checkpoint(tmp_path / "model.safetensors", tmp_path / "ours.safetensors", SCHEME)
    loaded = tilewright.load_quantized(block(MixtralExperts, 5), tmp_path / "ours.safetensors")
    with torch.no_grad():
        close(loaded(tokens()), tilewright.quantize(model, SCHEME)(tokens()), 1e-6)
    del state[f"experts.2.{names[1]}.weight"]
    save_safetensors(tmp_path / "less.safetensors", state)
    tilewright.convert_checkpoint(tmp_path / "less.safetensors", tmp_path / "less-ours.safetensors", SCHEME)
    with pytest.raises(MissingTensor, match=rf"experts\.2\.{names[1]} is missing"):
        tilewright.load_quantized(block(MixtralExperts, 5), tmp_path / "less-ours.safetensors")


@pytest.mark.parametrize(
    "names", [("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"), ("", "gate_up_proj", "down_proj")]
)
@pytest.mark.parametrize("dense", ["first", "second", "both of one expert", "gates"])
def test_experts_with_dense_parts(names: tuple[str, str, str], dense: str, tmp_path: Path) -> None:
    """It was said to be missing, what the checkpoint has in floats."""
    model, stacked = block(MixtralExperts), not names[0]
    state = {name: t.detach().numpy() for name, t in model.state_dict().items() if "experts" not in name}
    first, down = (getattr(model.experts, name).detach().numpy() for name in ("gate_up_proj", "down_proj"))
    for e in range(EXPERTS):
        gate, up, both = first[e, :INNER], first[e, INNER:], first[e]
        for name, array in zip(names, (both, both, down[e]) if stacked else (gate, up, down[e])):
            if name:
                state[f"experts.{name}.{e}.weight" if stacked else f"experts.{e}.{name}.weight"] = array.copy()
    skip = {
        "first": rf"\.({names[0] or names[1]}|{names[1]})\b", "second": rf"\.{names[2]}\b",
        "both of one expert": r"experts\..*\b2\b", "gates": rf"\.{names[0] or names[1]}\b.*",
    }[dense]  # fmt: skip
    save_safetensors(tmp_path / "model.safetensors", state)
    tilewright.convert_checkpoint(
        tmp_path / "model.safetensors", tmp_path / "ours.safetensors", SCHEME, skip=f"router|{skip}"
    )
    if dense == "both of one expert" or (dense == "gates" and not stacked):
        said = "of two forms" if dense == "gates" else "experts: "
        with pytest.raises(WrongArgumentShape, match=said):
            tilewright.load_quantized(block(MixtralExperts, 5), tmp_path / "ours.safetensors")
        return
    loaded = tilewright.load_quantized(block(MixtralExperts, 5), tmp_path / "ours.safetensors")
    with torch.no_grad():
        close(loaded(tokens()), rounded(model, loaded)(tokens()))
    kept = getattr(loaded.experts, "down_proj" if dense == "second" else "gate_up_proj")
    expected = down if dense == "second" else first
    assert all(np.array_equal(one.to_dense(), exact) for one, exact in zip(kept, expected, strict=True))


def test_gate_and_up_of_two_forms_are_refused() -> None:
    from tilewright.conversion.gathered_experts import side_by_side
    from tilewright.quant import quantize

    gate, up = (quantize(np.ones((8, 32)), to, group=16) for to in ("int8", "int4"))
    with pytest.raises(WrongArgumentShape, match=r"experts\.0 \(gate and up\) is made of weights of two forms"):
        side_by_side(gate, up, "experts.0", False)
    one = side_by_side(gate, quantize(2 * np.ones((8, 32)), "int8", group=16), "experts.0", True)
    np.testing.assert_allclose(one.to_dense()[:, 0], [1, 2] * 8, rtol=1e-3)


def calibrated_error(
    kind: Any, tokens_each: int, scheme: str = "uint3-g16-asym", **options: Any
) -> tuple[float, float]:
    """Errors on other tokens of experts rounded to nearest, and with calibration."""
    exact = block(kind)
    mixed = torch.randn(HIDDEN, HIDDEN, generator=torch.Generator().manual_seed(2)) * torch.logspace(0, -2, HIDDEN)

    def inputs(seed: int, count: int) -> Any:
        return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed)) @ mixed.T

    batches = [inputs(seed, tokens_each) for seed in range(3, 6)]
    other = inputs(9, 500)
    errors = []
    with torch.no_grad():
        expected = exact(other)
        for given in ({}, {"calibration": batches, **options}):
            made = tilewright.quantize(copy.deepcopy(exact), scheme, skip="up$|router", **given)
            assert isinstance(made.experts, Experts)
            errors.append(float(((made(other) - expected) ** 2).sum()))
    return errors[0], errors[1]


@pytest.mark.parametrize("kind", ROUTED)
@pytest.mark.parametrize("act_order", [False, True])
def test_calibrated_experts_are_nearer_than_those_rounded_to_nearest(kind: Any, act_order: bool) -> None:
    nearest, calibrated = calibrated_error(kind, 100, act_order=act_order)
    assert calibrated < 0.7 * nearest


def test_experts_that_few_tokens_reach_learn_from_others() -> None:
    nearest, calibrated = calibrated_error(MixtralExperts, 8)
    assert calibrated < 0.9 * nearest
    nearest, calibrated = calibrated_error(MixtralExperts, 1)  # 3 tokens, 2 experts each
    assert calibrated < 1.5 * nearest


def test_calibrated_products_of_runs() -> None:
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"experts": GraniteMoeParallelExperts()})
    x = torch.randn(90, HIDDEN) @ torch.randn(HIDDEN, HIDDEN)
    sizes = [20, 0, 40, 30]

    def error(**options: Any) -> float:
        made = tilewright.quantize(copy.deepcopy(model), "uint3-g16-asym", **options)
        return float(((made.experts(x, sizes) - model.experts(x, sizes)) ** 2).sum())

    with torch.no_grad():
        run = lambda model, batch: model.experts(*batch)  # noqa: E731
        assert error(calibration=[(x, sizes)], run=run) < 0.7 * error()
        with pytest.raises(CannotQuantize, match="no calibration input reaches experts"):
            error(calibration=[(x, sizes)], run=lambda model, batch: None)


@pytest.mark.parametrize("calibration", [None, [torch.randn(50, HIDDEN)]])
def test_an_expert_without_weights_is_one_of_them(calibration: Any) -> None:
    """The scales of numbers that float16 has none for are float32: those of the other experts were float16."""
    model = block(MixtralExperts)
    with torch.no_grad():
        model.experts.gate_up_proj[1] = 0
        model.experts.down_proj[2] *= 1e-6
    made = tilewright.quantize(copy.deepcopy(model), "w8a16-g16", calibration=calibration)
    assert isinstance(made.experts, Experts)
    close(made(tokens()), rounded(model, made)(tokens()))
