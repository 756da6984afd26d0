"""Weights of ExLlamaV2: groups of columns of several numbers of bits, the columns in an order of their own."""

from __future__ import annotations

import numpy as np

from tilewright.errors import InvalidTensor
from tilewright.quant.importers.arrays import expect
from tilewright.quant.importers.assemble import assemble, fields
from tilewright.quant.weight import QuantizedWeight

BITS = (2, 3, 4, 5, 6, 8)


def from_exl2(
    q_weight: object,
    q_scale: object,
    q_scale_max: object,
    q_groups: object,
    q_invperm: object,
    *,
    out_features: int | None = None,
    name: str = "weight",
) -> QuantizedWeight:
    """A weight of ExLlamaV2 (EXL2).

    With ``field`` as in `from_gptq`, p for ``q_invperm[k]``, g for the group that p is in, ``bits = q_groups[2 * g]``,
    i for the place of p in its group and ``words`` for the group's rows of `q_weight`, from ``q_groups[2 * g + 1]`` to
    where the next one begins; the last group ends with the columns::

        w[n, k] = (field(words[:, n], i) - 2**(bits - 1)) * scale[g, n]
        scale[g, n] = (nibble(q_scale[g, :], n) + 1)**2 * (q_scale_max[g] / 256)          each step in float16

    Codes are held in as many bits as the widest group has.

    Parameters
    ----------
    q_weight : int32 ``[rows of words, N]``.
    q_scale : int32 ``[groups, N / 8]``.
    q_scale_max : float16 ``[groups]``.
    q_groups : int16 ``[2 * groups]``.
    q_invperm : int32 ``[K]``.
    out_features : N, where columns were added to make a multiple of 32.

    Source: the converter and kernels of exllamav2 0.3.
    """
    words = expect(f"{name}.q_weight", q_weight, ["int32"], [None, None], "[words, N]")
    largest = expect(f"{name}.q_scale_max", q_scale_max, ["float16"], [None], "[groups]")
    groups, N = largest.size, words.shape[1]
    steps = expect(f"{name}.q_scale", q_scale, ["int32"], [groups, -(-N // 8)], "[groups, N / 8]")
    about = expect(f"{name}.q_groups", q_groups, ["int16"], [2 * groups], "[2 * groups]").astype(int)
    place = expect(f"{name}.q_invperm", q_invperm, ["int32", "int16"], [None], "[K]").astype(int)
    K, begins = place.size, [*about[1::2], len(words)]
    if not groups or (np.sort(place) != np.arange(K)).any():
        raise InvalidTensor(f"{name}.q_invperm is no order of its {K} columns in {groups} groups")
    if begins[0] or np.diff(begins).min() < 1 or not set(about[::2]) <= set(BITS):
        raise InvalidTensor(f"{name}.q_groups is {about.tolist()[:8]} ..., where bits and beginnings of groups are due")
    wide, codes, of_place = int(about[::2].max()), [], list[int]()
    for g, bits in enumerate(about[::2].tolist()):
        rows = words[begins[g] : begins[g + 1]]
        count = min(len(rows) * 32 // bits, K - len(of_place))
        if -(-count * bits // 32) != len(rows):
            raise InvalidTensor(f"{name}: group {g} has {len(rows)} rows of words for {count} columns of {bits} bits")
        codes.append(fields(np.ascontiguousarray(rows.T), bits, count) - np.uint8(1 << (bits - 1)))
        of_place += [g] * count
    if len(of_place) != K:
        raise InvalidTensor(f"{name}: its groups have {len(of_place)} columns, where q_invperm has {K}")
    factors = largest * np.float16(1 / 256)
    squares = ((fields(steps, 4, N).astype(np.int16) + 1) ** 2).astype(np.float16)
    count = N if out_features is None else out_features
    joined = (np.concatenate(codes, 1) & np.uint8((1 << wide) - 1))[:count, place]
    joined, scales = (np.ascontiguousarray(one) for one in (joined, (squares * factors[:, None]).T[:count]))
    return assemble(name, joined, f"int{wide}", scales, -(-K // groups), g_idx=np.array(of_place, np.int32)[place])
