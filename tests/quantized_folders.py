"""Folders of quantized safetensors, written from what the formats' public descriptions say, and what they stand for.

Nothing of grilly is used here. A function for each format draws the numbers of a matrix ``(n, k)`` and gives the
tensors, by what follows the layer's name, and the numbers as float64.
"""

from __future__ import annotations

import json

import numpy as np
import torch


def _int32(numbers, bits, axis, order=None):
    """Whole numbers from 0 on as int32 words along an axis; ``order``: which of them comes first in a word."""
    each = 32 // bits
    moved = np.moveaxis(numbers.astype(np.uint64), axis, -1)
    moved = np.pad(moved, [(0, 0)] * (moved.ndim - 1) + [(0, -moved.shape[-1] % each)])
    words = np.zeros((*moved.shape[:-1], moved.shape[-1] // each), np.uint64)
    for place, number in enumerate(range(each) if order is None else order):
        words += moved[..., number::each] << np.uint64(bits * place)
    words = np.moveaxis(words, -1, axis).astype(np.uint32)
    return torch.from_numpy(np.ascontiguousarray(words).view(np.int32).copy())


def _scales(rng, shape, k, dtype):
    """Scales, and what they are."""
    drawn = torch.from_numpy(rng.uniform(0.5, 1.5, shape) / (8 * k**0.5)).to(dtype)
    return drawn, drawn.double().numpy()


def awq(rng, n, k, group=32, dtype=torch.float16):
    q, z = rng.integers(0, 16, (k, n)), rng.integers(0, 16, (k // group, n))
    scales, s = _scales(rng, z.shape, k, dtype)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    tensors = {"qweight": _int32(q, 4, 1, order), "qzeros": _int32(z, 4, 1, order), "scales": scales}
    which = np.arange(k) // group
    return tensors, ((q - z[which]) * s[which]).T


def gptq(rng, n, k, group=32, bits=4, act=False, sym=False, less=1, dtype=torch.float16, index=None):
    groups, most = -(-k // group), 2**bits
    index = rng.permutation(np.arange(k) // group) if act else np.arange(k) // group if index is None else index
    q = rng.integers(0, most, (k, n))
    z = np.full((groups, n), most // 2) if sym else rng.integers(0, most, (groups, n))
    scales, s = _scales(rng, z.shape, k * most / 16, dtype)
    tensors = {"qweight": _int32(q, bits, 0), "qzeros": _int32((z - less) % most, bits, 1), "scales": scales,
               "g_idx": torch.from_numpy(index.astype(np.int32))}  # fmt: skip
    return tensors, ((q - z[index]) * s[index]).T


def compressed(rng, n, k, group=32, bits=4, packed=True, sym=True, act=False, dtype=torch.bfloat16):
    """``group`` 0: a scale for each row."""
    size, half = group or k, 2 ** (bits - 1)
    groups = k // size
    index = rng.permutation(np.arange(k) // size) if act else np.arange(k) // size
    q, z = rng.integers(-half, half, (n, k)), rng.integers(-half, half, (n, groups))
    scales, s = _scales(rng, z.shape, k * half / 8, dtype)
    tensors = {"weight_scale": scales}
    if packed:
        tensors |= {"weight_packed": _int32(q + half, bits, 1), "weight_shape": torch.tensor([n, k])}
    else:
        tensors["weight"] = torch.from_numpy(q.astype(np.int8))
    if act:
        tensors["weight_g_idx"] = torch.from_numpy(index.astype(np.int32))
    if sym:
        z = 0 * z
    else:
        tensors["weight_zero_point"] = _int32(z + half, bits, 0) if packed else torch.from_numpy(z.astype(np.int8))
    return tensors, (q - z[:, index]) * s[:, index]


NF4 = np.array([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
], np.float32)  # fmt: skip
FP4 = np.array([0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4], np.float32)
FP4 = np.concatenate([FP4, -FP4])


def bits_and_bytes_4(rng, n, k, block=64, nested=True, kind="nf4", dtype="float16", storage=torch.uint8):
    table = NF4 if kind == "nf4" else FP4
    q, blocks = rng.integers(0, 16, n * k), -(-n * k // block)
    raw = torch.from_numpy((q[::2] * 16 + q[1::2]).astype(np.uint8))
    state = {"quant_type": kind, "blocksize": block, "dtype": dtype, "shape": [n, k]}
    tensors = {"weight": raw.view(storage).reshape(-1, 1), "weight.quant_map": torch.from_numpy(table.copy())}
    if nested:
        codes = rng.integers(0, 256, blocks)
        known = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
        whole = (rng.uniform(0.5, 1.0, -(-blocks // 256)) / (4 * k**0.5)).astype(np.float32)
        offset = np.float32(1 / k**0.5)
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": float(offset)}
        absmax = known[codes] * np.repeat(whole, 256)[:blocks] + offset
        tensors |= {"weight.absmax": torch.from_numpy(codes.astype(np.uint8)),
                    "weight.nested_absmax": torch.from_numpy(whole),
                    "weight.nested_quant_map": torch.from_numpy(known)}  # fmt: skip
    else:
        absmax = (rng.uniform(0.5, 1.5, blocks) / k**0.5).astype(np.float32)
        tensors["weight.absmax"] = torch.from_numpy(absmax)
    tensors[f"weight.quant_state.bitsandbytes__{kind}"] = torch.frombuffer(
        bytearray(json.dumps(state).encode()), dtype=torch.uint8
    )
    numbers = table[q].astype(np.float64) * np.repeat(absmax.astype(np.float64), block)[: n * k]
    return tensors, numbers.reshape(n, k)


def bits_and_bytes_8(rng, n, k):
    q = rng.integers(-127, 128, (n, k)).astype(np.int8)
    most = rng.uniform(0.5, 1.5, n).astype(np.float32) / np.float32(k**0.5)
    tensors = {"weight": torch.from_numpy(q), "SCB": torch.from_numpy(most),
               "weight_format": torch.tensor(0, dtype=torch.uint8)}  # fmt: skip
    return tensors, q * most.astype(np.float64)[:, None] / 127


def float8(rng, n, k, blocks=None, scale="row", name="weight_scale", dtype=torch.float32):
    weight = torch.from_numpy(rng.standard_normal((n, k)) * 40).to(torch.float8_e4m3fn)
    weight.view(torch.uint8)[0, :4] = torch.tensor([1, 135, 126, 254])  # the least numbers, and the largest ones
    high, wide = blocks or ((n, k) if scale == "tensor" else (1, k))
    scales, s = _scales(rng, (-(-n // high), -(-k // wide)), 32 * k, dtype)
    if scale == "tensor" and blocks is None:
        scales = scales.reshape(())
    full = np.repeat(np.repeat(s, high, axis=0)[:n], wide, axis=1)[:, :k]
    return {"weight": weight, name: scales}, weight.double().numpy() * full


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def mxfp4(rng, n, k, names=("weight_blocks", "weight_scales")):
    q, e = rng.integers(0, 16, (n, k)), rng.integers(118, 122, (n, k // 32))
    raw = (q[:, ::2] + 16 * q[:, 1::2]).astype(np.uint8)
    raw = raw.reshape(n, k // 32, 16) if names[0].endswith("blocks") else raw
    tensors = {names[0]: torch.from_numpy(raw), names[1]: torch.from_numpy(e.astype(np.uint8))}
    return tensors, E2M1[q] * np.repeat(2.0 ** (e - 127.0), 32, axis=1)


def scheme(bits=4, strategy="group", group=32, sym=True, type="int", **more):
    """The fields of compressed-tensors."""
    form = more.pop("format")
    weights = {"num_bits": bits, "type": type, "symmetric": sym, "strategy": strategy, "dynamic": False,
               "group_size": group if strategy == "group" else None, "observer": "minmax", **more}  # fmt: skip
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
            "ignore": ["lm_head"], "config_groups": {"group_0": group}, "kv_cache_scheme": None}  # fmt: skip


_GPTQ = {"quant_method": "gptq", "sym": False, "desc_act": False, "group_size": 32, "damp_percent": 0.01,
         "true_sequential": True}  # fmt: skip
_BNB4 = {"quant_method": "bitsandbytes", "_load_in_4bit": True, "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
         "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "float16"}  # fmt: skip
#: Formats: the fields ``quantization_config``, the function, its options, and the type that grilly has on a device.
FORMATS = {
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm",
             "modules_to_not_convert": None}, awq, {}, "UINT4:32"),
    "awq-64-bf16": ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "GEMM"}, awq,
                    {"group": 64, "dtype": torch.bfloat16}, "UINT4_BF16:64"),
    "awq-row": ({"quant_method": "awq", "w_bit": 4, "q_group_size": -1, "zero_point": True}, awq, {"group": 128},
                "UINT4:128"),
    "gptq": ({**_GPTQ, "bits": 4}, gptq, {}, "UINT4:32"),
    "gptq-act": ({**_GPTQ, "bits": 4, "desc_act": True}, gptq, {"act": True}, "UINT4:32"),
    "gptq-sym": ({**_GPTQ, "bits": 4, "sym": True, "checkpoint_format": "gptq"}, gptq, {"sym": True}, "INT4:32"),
    "gptq-v2-8": ({**_GPTQ, "bits": 8, "checkpoint_format": "gptq_v2"}, gptq, {"bits": 8, "less": 0}, "UINT8:32"),
    "gptq-8-sym-act": ({**_GPTQ, "bits": 8, "desc_act": True, "group_size": 64}, gptq,
                       {"bits": 8, "sym": True, "act": True, "group": 64}, "INT8:64"),
    "packed": (scheme(format="pack-quantized"), compressed, {}, "INT4:32"),
    "packed-zeros": (scheme(format="pack-quantized", sym=False), compressed, {"sym": False}, "UINT4_BF16:32"),
    "packed-act": (scheme(format="pack-quantized", actorder="group"), compressed, {"act": True}, "INT4:32"),
    "packed-8": (scheme(8, "channel", format="pack-quantized"), compressed, {"bits": 8, "group": 0}, "INT8:128"),
    "int8": (scheme(8, "channel", format="int-quantized"), compressed, {"bits": 8, "group": 0, "packed": False},
             "INT8:128"),
    "int8-zeros": (scheme(8, "channel", sym=False, format="int-quantized"), compressed,
                   {"bits": 8, "group": 0, "packed": False, "sym": False, "dtype": torch.float16}, "UINT8:128"),
    "nf4": (_BNB4, bits_and_bytes_4, {}, "NF4:64"),
    "nf4-single": ({**_BNB4, "bnb_4bit_use_double_quant": False}, bits_and_bytes_4,
                   {"nested": False, "dtype": "bfloat16", "storage": torch.bfloat16}, "NF4:64"),
    "bnb-int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0}, bits_and_bytes_8,
                 {}, "INT8:128"),
    "fp8-blocks": ({"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
                    "weight_block_size": [128, 128]}, float8, {"blocks": (128, 128), "name": "weight_scale_inv"},
                   "F8_E4M3:128"),
    "fp8": ({"quant_method": "fp8", "activation_scheme": "static"}, float8, {"scale": "tensor"}, "F8_E4M3:128"),
    "fp8-rows": (scheme(8, "channel", type="float", format="float-quantized"), float8, {"dtype": torch.bfloat16},
                 "F8_E4M3:128"),
    "mxfp4": ({"quant_method": "mxfp4", "modules_to_not_convert": []}, mxfp4, {}, "MXFP4"),
    "mxfp4-packed": (scheme(type="float", format="mxfp4-pack-quantized"), mxfp4,
                     {"names": ("weight_packed", "weight_scale")}, "MXFP4"),
}  # fmt: skip
