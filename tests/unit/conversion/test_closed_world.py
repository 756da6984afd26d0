"""Nothing of a quantised checkpoint is passed over: strange companions, keys, versions, types and shapes, made for every form."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "quant"))
import test_auto_round
import test_convert
import test_more_forms
import test_rarer_libraries
from checkpoint_writers import Written, write_gptq, write_int8
from more_writers import write_torchao_blocks, write_torchao_int4, write_torchao_intx

from tilewright.checkpoints import open_checkpoint, save_safetensors
from tilewright.conversion import convert_checkpoint, load_quantized
from tilewright.conversion.layers import FORMS, declared_activations, read_layer, recognise
from tilewright.conversion.methods import METHODS
from tilewright.conversion.settings import quantization_settings
from tilewright.errors import InvalidTensor, MissingTensor, TilewrightError
from tilewright.quant.files import read_weight

Case = tuple[dict[str, Any], str, dict[str, np.ndarray], dict[str, str], np.ndarray]


def nvfp4(rng: np.random.Generator, group: int = 16) -> Written:
    codes = rng.integers(0, 256, (8, 32)).astype(np.uint8)
    scales = rng.uniform(1, 400, (8, 64 // group)).astype(ml_dtypes.float8_e4m3fn)
    table = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
    weight = np.array(
        [
            [table[codes[n, k // 2] >> 4 * (k % 2) & 15] * float(scales[n, k // group]) * 0.5 for k in range(64)]
            for n in range(8)
        ]
    )
    return Written({"weight": codes, "weight_scale": scales, "weight_scale_2": np.array(0.5, np.float32)}, weight)  # fmt: skip


def mxfp4(rng: np.random.Generator) -> Written:
    written = nvfp4(rng, 32)
    scales = rng.integers(120, 134, (8, 2)).astype(np.uint8)
    plain = written.weight / np.repeat(written.tensors["weight_scale"].astype(float) * 0.5, 32, 1)
    return Written(
        {"weight": written.tensors["weight"], "weight_scale": scales},
        plain * np.repeat(2.0 ** (scales.astype(float) - 127), 32, 1),
    )


def modelopt_int4(rng: np.random.Generator) -> Written:
    values = rng.integers(-8, 8, (8, 64))
    scales = rng.uniform(0.5, 1.5, (8, 2)).astype(ml_dtypes.bfloat16)
    packed = np.array([[values[2 * r, k] & 15 | (values[2 * r + 1, k] & 15) << 4 for k in range(64)] for r in range(4)])
    weight = values * np.repeat(scales.astype(float), 32, 1)
    return Written({"weight": packed.astype(np.uint8), "weight_scale": scales}, weight)


def smoothed(written: Written, rng: np.random.Generator) -> Written:
    factors = rng.uniform(0.5, 2, written.weight.shape[1]).astype(ml_dtypes.bfloat16)
    return Written({**written.tensors, "pre_quant_scale": factors}, written.weight * factors.astype(float))


def planes(rng: np.random.Generator, bits: int) -> Written:
    """GPTQModel's gptq_p, bit by bit: 32 codes side by side as their parts of 4, 2 and 1 bits."""
    written = write_gptq(rng, 32, 64, 8, 32, 2, False)
    codes, zeros = rng.integers(0, 1 << bits, (64, 32)), rng.integers(0, 1 << bits, (2, 32))
    widths = {2: [2], 3: [2, 1], 4: [4], 5: [4, 1], 6: [4, 2], 7: [4, 2, 1], 8: [8]}[bits]

    def words(numbers: list[int]) -> list[int]:
        made = []
        for start in range(0, len(numbers), 32):
            offset = 0
            for width in widths:
                string = sum(
                    (n >> offset & (1 << width) - 1) << width * i for i, n in enumerate(numbers[start : start + 32])
                )
                made += [string >> 32 * i & 0xFFFFFFFF for i in range(width)]
                offset += width
        return made  # fmt: skip

    scales = written.tensors["scales"]
    tensors = {
        "qweight": np.array([words([int(c) for c in codes[:, n]]) for n in range(32)], np.uint32).T.copy().view(np.int32),
        "qzeros": np.array([words([int(z) for z in row]) for row in zeros], np.uint32).view(np.int32), "scales": scales,
        "g_idx": np.arange(64, dtype=np.int32) // 32,
    }  # fmt: skip
    spread = np.repeat(np.arange(2), 32)
    return Written(tensors, ((codes - zeros[spread]) * scales[spread].astype(float)).T)


def dividing_rows(rng: np.random.Generator) -> Written:
    """GPTQModel's fp8: ``weight_scale_inv`` is what weights were multiplied by."""
    values = rng.standard_normal((8, 32)).astype(ml_dtypes.float8_e4m3fn)
    divisors = rng.uniform(100, 400, 8).astype(np.float32)
    return Written({"weight": values, "weight_scale_inv": divisors}, values.astype(float) / divisors[:, None])


def mlx(rng: np.random.Generator, mode: str) -> Written:
    """MLX's floats: bytes of a row as words, and a byte for each group that is a power of two, or e4m3 (nvfp4)."""
    kind, scales, group = {
        "mxfp4": (ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e8m0fnu, 32), "nvfp4": (ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn, 16),
        "mxfp8": (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu, 32),
    }[mode]  # fmt: skip
    values = rng.uniform(-6, 6, (8, 64)).astype(kind)
    factors = np.exp2(rng.integers(-4, 4, (8, 64 // group))).astype(scales)
    codes = values.view(np.uint8)
    stored = codes if mode == "mxfp8" else codes[:, ::2] & 15 | codes[:, 1::2] << 4
    weight = values.astype(float) * np.repeat(factors.astype(float), group, 1)
    return Written({"weight": np.ascontiguousarray(stored).view(np.uint32), "scales": factors.view(np.uint8)}, weight)


def quanto(rng: np.random.Generator, kind: Any) -> Written:
    values, scales = rng.integers(-100, 100, (8, 32)).astype(kind), rng.uniform(0.01, 0.1, (8, 1)).astype(np.float32)
    return Written({"weight._data": values, "weight._scale": scales}, values.astype(float) * scales.astype(float))


def auto_round(kind: str) -> tuple[dict[str, Any], str, Callable[[np.random.Generator], Written]]:
    tensors, said, weight = test_auto_round.made(kind)
    return test_auto_round.SAID | said, ".", lambda rng: Written(tensors, weight)


def with_a_second_scale(written: Written) -> Written:
    """modelopt's W4A8: what a kernel rounds the numbers of the codes to floats of 8 bits by."""
    return Written({**written.tensors, "weight_scale_2": np.array(0.01, np.float32)}, written.weight)


GPTQ_P = {
    "quant_method": "gptq",
    "method": "gptq",
    "group_size": 32,
    "checkpoint_format": "gptq_p",
    "format": "gptq_p",
    "pack_dtype": "int32",
}
MODELOPT = {
    "quant_method": "modelopt",
    "producer": {"name": "modelopt", "version": "0.47"},
    "pre_quant_scale": True,
    "has_zero_point": False,
}
MORE: dict[str, tuple[dict[str, Any], str, Callable[[np.random.Generator], Written]]] = {
    **{f"gptq_p {b} bits": (GPTQ_P | {"bits": b}, ".", lambda r, b=b: planes(r, b)) for b in range(2, 9)},
    "modelopt nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ".", nvfp4),
    "modelopt nvfp4 in blocks of 32": (
        {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "dynamic": False, "group_size": 32}}}},
        ".", lambda r: nvfp4(r, 32),
    ),
    "modelopt nvfp4 in blocks that the scales tell": (
        {"quant_method": "modelopt", "quant_algo": "W4A8_NVFP4_FP8"}, ".", lambda r: nvfp4(r, 32),
    ),
    "modelopt mxfp4": (
        {"quant_method": "modelopt", "quant_algo": "mxfp4"}, ".", mxfp4,
    ),
    "modelopt nvfp4 awq": (MODELOPT | {"quant_algo": "NVFP4_AWQ"}, ".", lambda r: smoothed(nvfp4(r), r)),
    "modelopt int4 awq": (MODELOPT | {"quant_algo": "W4A16_AWQ", "group_size": 32}, ".", lambda r: smoothed(modelopt_int4(r), r)),
    "modelopt int8 smoothed": (MODELOPT | {"quant_algo": "W8A8_SQ_PER_CHANNEL"}, ".", lambda r: smoothed(write_int8(r, 8, 32, 1), r)),
    "modelopt int4 with activations of 8 bits": (
        MODELOPT | {"quant_algo": "W4A8_AWQ", "group_size": 32}, ".", lambda r: with_a_second_scale(smoothed(modelopt_int4(r), r)),
    ),
    **{
        f"mlx {mode}": ({"quant_method": "mlx", "mode": mode, "bits": 8 if mode == "mxfp8" else 4}, ".", lambda r, mode=mode: mlx(r, mode))
        for mode in ("mxfp4", "nvfp4", "mxfp8")
    },
    "quanto int8": ({}, ".", lambda r: quanto(r, np.int8)),
    "quanto fp8": ({}, ".", lambda r: quanto(r, ml_dtypes.float8_e4m3fn)),
    "auto-round mxfp4": auto_round("MXFP4"),
    "auto-round nvfp4": auto_round("NVFP4"),
    "gptqmodel fp8": (
        {"quant_method": "fp8", "method": "fp8", "bits": 8, "checkpoint_format": "fp8", "format": "float8_e4m3fn",
         "weight_scale_method": "row", "weight_scale_semantics": "inverse"}, ".", dividing_rows,
    ),
}  # fmt: skip
WRITERS = {**test_convert.FORMS, **test_more_forms.FORMS, **test_rarer_libraries.FORMS, **MORE}
TORCHAO = {
    "torchao int4": lambda r: write_torchao_int4(r, 8, 64, 32),
    "torchao int8": lambda r: write_torchao_intx(r, 8, 64, 32, 8),
    **{
        f"torchao mx {element} {swizzled}": lambda r, element=element, swizzled=swizzled: write_torchao_blocks(r, 130, 192, element, swizzled)
        for element in ("float8_e4m3fn", "float8_e5m2", "fp6_e2m3", "fp6_e3m2", "float4_e2m1fn_x2") for swizzled in (False, True)
    },
    **{
        f"torchao nvfp4 {swizzled}": lambda r, swizzled=swizzled: write_torchao_blocks(r, 130, 96, "float4_e2m1fn_x2", swizzled, True)
        for swizzled in (False, True)
    },
}  # fmt: skip
NAMES = [*WRITERS, *TORCHAO]


def case(name: str) -> Case:
    rng = np.random.default_rng(5)
    if name in TORCHAO:
        written, about = TORCHAO[name](rng)
        return {"quant_method": "torchao"}, ".", written.tensors, {"up.weight": about}, written.weight
    settings, dot, write = WRITERS[name]
    written = write(rng)
    return settings, dot, written.tensors, {}, written.weight


def converted(directory: Path, one: Case, more: dict[str, np.ndarray] | None = None, **said: Any) -> Any:
    settings, dot, tensors, metadata, _ = one
    directory.mkdir(parents=True)
    named = {f"up{dot}{ending}": tensor for ending, tensor in tensors.items()}
    save_safetensors(directory / "model.safetensors", named | (more or {}), metadata)
    (directory / "config.json").write_text(
        json.dumps({"quantization_config": settings | said} if settings | said else {})
    )
    convert_checkpoint(directory, directory / "ours")
    return open_checkpoint(directory / "ours")  # fmt: skip


@pytest.mark.parametrize("name", [*MORE, *TORCHAO])
def test_forms_that_were_misread(tmp_path: Path, name: str) -> None:
    one = case(name)
    found = read_weight(converted(tmp_path / "from", one), "up").to_dense()
    np.testing.assert_allclose(found, one[-1], rtol=1e-14, atol=1e-15)


def test_every_form_has_a_case() -> None:
    met = {
        layer.form
        for name in NAMES
        for layer in recognise(_Tensors(case(name)), _settings(name))
    }  # fmt: skip
    assert set(FORMS) - met <= {"tilewright", "gguf", "bitblas", "quanto-packed", "fp8-experts"}
    said = {settings.get("quant_method") for settings, *_ in map(case, NAMES)}
    assert set(METHODS) - said <= {"tilewright", "marlin", "bitblas"}


def _settings(name: str) -> Any:
    return quantization_settings({"quantization_config": case(name)[0]})


class _Tensors(dict[str, np.ndarray]):
    def __init__(self, one: Case) -> None:
        super().__init__({f"up{one[1]}{ending}": tensor for ending, tensor in one[2].items()})
        self.metadata = one[3]


STRAYS = ("up.pre_scale", "up.weight_something", "up.weight.something", "up.lora_A.weight", "up_rescale")


@pytest.mark.parametrize("name", NAMES)
def test_a_companion_that_nobody_reads_is_named(tmp_path: Path, name: str) -> None:
    one = case(name)
    biases = dict.fromkeys(("up.bias", "up.e_score_correction_bias"), np.ones(len(one[-1]), np.float32))
    made = converted(tmp_path / "bias", one, biases)
    assert ("up.bias" in made or "up_bias" in made) and "up.e_score_correction_bias" in made
    for number, stray in enumerate(STRAYS):
        with pytest.raises(InvalidTensor) as raised:
            converted(tmp_path / str(number), one, {stray: np.ones(one[-1].shape[1], np.float32)})
        assert raised.value.message.startswith(f"{stray} (float32 [{one[-1].shape[1]}]) is beside up")
        assert raised.value.message.endswith(", and nothing here reads it")
        assert not (tmp_path / str(number) / "ours").exists()


@pytest.mark.parametrize("name", [name for name in NAMES if case(name)[0]])
def test_a_word_that_nobody_reads_is_named(tmp_path: Path, name: str) -> None:
    one = case(name)
    converted(tmp_path / "off", one, uses_mystery=False, mystery=None, mysteries={})
    for value in (True, 2, "strange", {"a": 1}):
        with pytest.raises(InvalidTensor, match=r"from: the configuration says mystery: .*, which nothing here reads"):
            converted(tmp_path / f"{value}".replace(":", "") / "from", one, mystery=value)


VERSIONS = {
    "gptq": ("checkpoint_format", "format", "pack_dtype", "data_type"), "marlin": ("checkpoint_format",), "bitblas": ("format",),
    "awq": ("version", "format", "bits"), "compressed-tensors": ("format",), "modelopt": ("quant_algo", "has_zero_point"),
    "fp8": ("fmt", "scale_fmt", "weight_scale_semantics", "checkpoint_format", "expert_dtype"),
    "mlx": ("mode", "bits"), "bitnet": ("linear_class", "quantization_mode", "use_rms_norm"), "tilewright": ("version",), "bitsandbytes": ("format", "bits"),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in NAMES if case(name)[0].get("quant_method") in VERSIONS])
def test_another_version_is_refused(tmp_path: Path, name: str) -> None:
    one = case(name)
    for key in VERSIONS[one[0]["quant_method"]]:
        with pytest.raises(InvalidTensor, match=rf"the configuration says {key}: 'v9', where"):
            converted(tmp_path / key, one, **{key: "v9"})
    with pytest.raises(InvalidTensor, match="the checkpoint is quantised by 'v9'"):
        converted(tmp_path / "method", one, quant_method="v9")


def test_words_that_contradict_one_another_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTensor, match=r"the configuration says gptq and gptq_v2 \(checkpoint_format, format\)"):
        converted(tmp_path / "from", case("gptq"), checkpoint_format="gptq", format="gptq_v2")


def test_a_way_of_quantising_without_a_name_is_refused(tmp_path: Path) -> None:
    settings, *rest = case("gptq")
    nameless = {key: value for key, value in settings.items() if key != "quant_method"}
    with pytest.raises(InvalidTensor, match=r"speaks of quantisation \(bits, group_size\) and names no quant_method"):
        converted(tmp_path / "from", (nameless, *rest))
    with pytest.raises(InvalidTensor, match=r"up\.qweight is int32 \[16, 24\]: codes, but what belongs to them"):
        converted(tmp_path / "silent", ({}, *rest))  # GPTQ's versions differ by one in every zero point


def test_rows_of_inverse_scales_need_a_word_on_what_they_do(tmp_path: Path) -> None:
    settings, *rest = case("gptqmodel fp8")
    silent = {key: value for key, value in settings.items() if key != "weight_scale_semantics"}
    with pytest.raises(
        InvalidTensor, match=r"up\.weight_scale_inv is \[8\], and the configuration does not say whether it multiplies"
    ):
        converted(tmp_path / "from", (silent, *rest))  # fmt: skip


def test_scales_beside_a_dense_weight_are_no_ornament(tmp_path: Path) -> None:
    one = case("int8")
    more = {"down.weight": np.ones((8, 8), np.float32), "down.weight_scale": np.ones((8, 1), np.float32)}
    with pytest.raises(
        InvalidTensor, match=r"down\.weight_scale \(float32 \[8, 1\]\) is beside down\.weight, which is float32, and"
    ):
        converted(tmp_path / "from", one, more)  # fmt: skip


def changed(tensor: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The same tensor with other types and shapes, none of which it may have."""
    yield "bool", np.zeros(tensor.shape, bool)
    yield "one more dimension", np.stack([tensor, tensor])
    if tensor.size > 1:
        flat = tensor.reshape(-1)
        yield "an element less", flat[:-1].copy()
        yield "nothing", flat[:0].copy()


UNREAD = (
    "g_idx",
    "input_global_scale",
    "unpack_view_dtype",
    "view_as_float",
    "encoded_state_dict",
    "quant_scale",
    "weight_format",
    "meta.group_size",
    "meta.compute_dtype",
    "meta.unpack_view_dtype",
    "meta.view_as_float",
    "act_global_scale",
    "backward_hadamard_matrix",
)
"""Parts that may be empty, or that are left out, or of which only the first element says something, or nothing."""


@pytest.mark.parametrize("name", NAMES)
def test_a_part_of_another_type_or_shape_is_refused(name: str) -> None:
    settings, dot, tensors, metadata, weight = case(name)
    for part, tensor in tensors.items():
        for what, other in changed(tensor):
            if part in UNREAD or (tensor.size == 1 and what != "bool"):
                continue
            strange = _Tensors((settings, dot, {**tensors, part: other}, metadata, weight))
            with pytest.raises(TilewrightError, match="up") as raised:
                layers = recognise(strange, _settings(name))
                for layer in layers:
                    read_layer(strange, layer, _settings(name))
                if not layers:  # what is no weight any more is copied as it is: a tensor of bools, that no model takes
                    raise InvalidTensor("up is no weight: nothing to convert")
            assert isinstance(raised.value, (InvalidTensor, MissingTensor)), (part, what, raised.value)


def test_torchao_says_of_each_tensor_what_its_activations_are(tmp_path: Path) -> None:
    written, about = write_torchao_intx(np.random.default_rng(0), 8, 64, 32, 8)
    said = json.loads(about)
    tensors = {f"{layer}.{ending}": t for layer in ("up", "down") for ending, t in written.tensors.items()}
    factors = np.random.default_rng(1).uniform(0.5, 2, 64).astype(np.float32)
    tensors["up._weight_act_pre_scale"] = factors
    dynamic = said | {
        "_type": "Int8Tensor",
        "_data": said["_data"] | {"act_quant_kwargs": {"_type": "QuantizeTensorToInt8Kwargs"}},
    }
    save_safetensors(tmp_path / "a.safetensors", tensors, {"up.weight": json.dumps(dynamic), "down.weight": about})
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "torchao"}}))
    found = open_checkpoint(tmp_path)
    layers = {layer.name: layer for layer in recognise(found, {"quant_method": "torchao"})}
    assert declared_activations(found, layers["up"], {"quant_method": "torchao"}) == "int8"
    assert declared_activations(found, layers["down"], {"quant_method": "torchao"}) is None
    smoothed_up = read_layer(found, layers["up"], {})["up"].to_dense()
    np.testing.assert_allclose(smoothed_up, written.weight * factors.astype(float), rtol=1e-14)
    convert_checkpoint(tmp_path, tmp_path / "ours")
    said_of_ours = open_checkpoint(tmp_path / "ours").config["quantization_config"]
    assert said_of_ours["declared_activations"] == {"down": None, "up": "int8"}
    torch = pytest.importorskip("torch")
    for path in (tmp_path, tmp_path / "ours"):
        model = torch.nn.ModuleDict({name: torch.nn.Linear(64, 8, bias=False) for name in ("up", "down")})
        load_quantized(model, path, activations="declared")
        assert (model["up"].quantize, model["down"].quantize) == ("int8", None)
    said["_data"]["mystery"] = 3
    save_safetensors(tmp_path / "a.safetensors", tensors, {"up.weight": json.dumps(said), "down.weight": about})
    with pytest.raises(
        InvalidTensor, match="up: a torchao IntxUnpackedToInt8Tensor with mystery, which nothing here reads"
    ):
        convert_checkpoint(tmp_path, tmp_path / "strange")
