"""Tensors of a checkpoint that stand for others: what mlx-lm has changed in some models, whose other libraries' models
compute with the numbers as they were, or cut by heads, and matrices of which compressed-tensors keeps what is not
zero."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from tilewright.checkpoints import Checkpoint
from tilewright.conversion import readers
from tilewright.conversion.settings import Settings, quantization_settings, with_own_file
from tilewright.errors import InvalidTensor
from tilewright.quant.importers.arrays import FLOATS, expect, take

_ONE_ADDED = re.compile(r"(\.(input|post_attention)_layernorm|(^|\.)model\.norm|\.[qk]_norm)\.weight$")
"""Norms of Qwen 3 Next and Qwen 3.5, whose models add one to them themselves."""

_FOLDED = {"falcon_h1": True, "step3p5": False}
"""Models whose weights mlx-lm multiplies by numbers of the configuration (``..._multiplier``), or to some of which it
adds one."""


def settings_of(source: Checkpoint) -> Settings:
    """What a checkpoint says of its quantisation, as `quantization_settings`; from then on tensors that mlx-lm has
    changed are read as they were, those that are stored sparse as matrices. Raises InvalidTensor as there, or where
    mlx-lm has changed weights in a way that is not undone here."""
    settings = quantization_settings(source.config, source.directory)
    settings = with_own_file(settings, source.own, source.directory)
    sparse = {name.removesuffix(".bitmask").removesuffix(".weight") for name in source if name.endswith(".bitmask")}
    if sparse:
        source.remake({f"{one}.weight": _stored(source, one) for one in sparse}, _dense)
    if settings.get("quant_method") != "mlx":
        return settings
    parts = (source.config, *(part for part in source.config.values() if isinstance(part, Mapping)))
    kinds = {str(part.get("model_type")) for part in parts}
    # It has changed them where it has turned the filters of convolutions, too.
    turned = any(name.endswith("conv1d.weight") and source[name].shape[-1:] == (1,) for name in source)
    if turned and any(kind.startswith(("qwen3_next", "qwen3_5")) for kind in kinds):
        norms = [name for name in source if _ONE_ADDED.search(name) and source[name].ndim == 1]
        source.remake({name: (name,) for name in norms}, _less_one)
    heads = [name.removesuffix(".embed_q.weight") for name in source if name.endswith(".embed_q.weight")]
    made = {f"{one}.kv_b_proj.weight": _parts_of_heads(source, one) for one in heads}
    source.remake(made, lambda name, *arrays: _of_heads(name, dict(zip(made[name], arrays)), settings))
    factors = [value for part in parts for key, value in part.items() if re.search("multipliers?$", key)]
    folds = any(np.any(np.asarray(value) != 1) for value in factors)
    kind = next((one for one, of_numbers in _FOLDED.items() if one in kinds and (folds or not of_numbers)), None)
    if kind is not None:
        raise InvalidTensor(
            f"{source.directory}: mlx-lm changes weights of a {kind} before it saves them, by what others' models "
            "do as well",
            hint="convert or quantise the dense model instead",
        )
    return settings


def _parts_of_heads(source: Checkpoint, layer: str) -> tuple[str, ...]:
    """The tensors of two matrices a head that mlx-lm makes of latent attention's ``kv_b_proj``.  Raises
    MissingTensor."""
    take(source, layer, ".unembed_out.weight", "MLX")
    parts = (f"{layer}.{part}.{end}" for part in _OF_HEADS for end in ("weight", "scales", "biases", "global_scale"))
    return tuple(part for part in parts if part in source)


_OF_HEADS = ("embed_q", "unembed_out")


def _of_heads(name: str, tensors: Mapping[str, np.ndarray], settings: Settings) -> np.ndarray:
    """``kv_b_proj`` as it was, in float32: for each head the rows that make its keys, which lie as columns in
    ``embed_q``, and those that make its values. Codes of keys have their groups along what are rows of the matrix,
    those of values along its columns: numbers. Raises InvalidTensor for parts that do not fit one another."""
    layer, three = name.removesuffix(".kv_b_proj.weight"), []
    for part in (f"{layer}.{one}" for one in _OF_HEADS):
        numbers = tensors[f"{part}.weight"]
        if f"{part}.scales" in tensors:
            read = readers.mlx(tensors, part, settings)
            several = read.values() if isinstance(read, dict) else (read,)
            numbers = np.stack([one.to_dense() for one in several])
        three.append(expect(f"{part}.weight", numbers, FLOATS, [None, None, None], "[heads, N, K]").astype(np.float32))
    keys, values = three[0].swapaxes(1, 2), three[1]
    if (len(keys), keys.shape[2]) != (len(values), values.shape[2]):
        raise InvalidTensor(f"{layer}: embed_q is {list(three[0].shape)} beside unembed_out of {list(values.shape)}")
    return np.concatenate([keys, values], 1).reshape(-1, keys.shape[2])


def _less_one(name: str, values: np.ndarray) -> np.ndarray:
    return (values.astype(np.float32) - 1.0).astype(values.dtype)


_STORED = ("compressed", "bitmask", "shape", "row_offsets")
"""What compressed-tensors keeps of a sparse matrix: its numbers row by row, and a bit for each element, lowest first;
where rows begin among the numbers follows of that."""


def _stored(source: Checkpoint, layer: str) -> tuple[str, ...]:
    """The tensors of a sparse matrix, which earlier versions named after the weight.  Raises MissingTensor, and
    InvalidTensor where there is a matrix of that name."""
    if f"{layer}.weight" in source:
        raise InvalidTensor(f"{layer}.weight is there, and beside it a sparse one ({layer}.bitmask)")
    named = layer if f"{layer}.bitmask" in source else f"{layer}.weight"
    for part in _STORED[:3]:
        take(source, named, f".{part}", "sparse")
    return tuple(f"{named}.{part}" for part in _STORED if f"{named}.{part}" in source)


def _dense(name: str, values: np.ndarray, mask: np.ndarray, shape: np.ndarray, *offsets: np.ndarray) -> np.ndarray:
    """A matrix of the numbers that are kept of it. Raises InvalidTensor for parts that do not fit one another."""
    layer = name.removesuffix(".weight")
    flat = np.reshape(shape, -1)
    N, K = (int(one) for one in expect(f"{layer}.shape", flat, ["int64", "int32"], [2], "[2]"))
    mask = expect(f"{layer}.bitmask", mask, ["uint8"], [N, -(-K // 8)], "[N, K / 8]")
    there = np.unpackbits(mask, axis=1, count=K, bitorder="little").astype(bool)
    kept = expect(
        f"{layer}.compressed", values.reshape(-1), [values.dtype.name], [int(there.sum())], "of as many as bits"
    )
    dense = np.zeros((N, K), values.dtype)
    dense[there] = kept
    return dense
