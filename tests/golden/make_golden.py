"""Write the fixtures beside this file: what PyTorch and transformers compute, so that tests need neither.

Run by a maintainer with both installed: ``python tests/golden/make_golden.py``. Attention is computed in float64 from
float32 inputs and weights and stored rounded to float32. Arrays are named ``case/array``; a module's state dict is
``case/state/name``; ``meta`` is JSON with the versions and, for each case, the arguments to use.

Boolean masks are stored with grilly's meaning, True = attend, whatever meaning the module they went through gives them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import GPTJConfig, LlamaConfig, T5Config
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama
from transformers.models.t5.modeling_t5 import T5Attention


class Golden:
    """One file's cases."""

    def __init__(self, name):
        self.path = Path(__file__).parent / f"{name}.npz"
        self.arrays = {}
        self.cases = {}

    def add(self, case, arguments, state=None, **arrays):
        self.cases[case] = arguments
        arrays.update({f"state/{name}": value for name, value in (state or {}).items()})
        for name, value in arrays.items():
            if value is not None:
                value = value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
                value = value.astype(np.float32) if value.dtype == np.float64 else value
                self.arrays[f"{case}/{name}"] = value

    def save(self):
        meta = {"torch": torch.__version__, "transformers": transformers.__version__, "cases": self.cases}
        np.savez_compressed(self.path, meta=np.array(json.dumps(meta)), **self.arrays)
        print(f"{self.path.name}: {len(self.cases)} cases, {self.path.stat().st_size / 1024:.0f} KiB")


def random(*shape):
    """Doubles that float32 holds exactly, so that what is stored is what was computed with."""
    return torch.randn(*shape, dtype=torch.float32).double()


def exact(module):
    """The module with random float32 parameters (some start as zeros, which would test nothing), as doubles."""
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(torch.randn_like(p) * (1.0 if "relative" in name else 1 / math.sqrt(p.shape[-1])))
    return module.double().eval()


def make_mha():
    golden = Golden("mha")

    def case(name, key_len=None, mask=None, causal=False, e=12, heads=4, queries=5, **options):
        module = exact(torch.nn.MultiheadAttention(e, heads, batch_first=True, **options))
        cross = key_len is not None
        query = random(2, queries, e)
        key = random(2, key_len, options.get("kdim", e)) if cross else query
        value = random(2, key_len, options.get("vdim", e)) if cross else query
        hidden = None  # torch's meaning: True = ignore; (B * H, Sq, Sk)
        if causal:
            hidden = torch.triu(torch.ones(queries, queries, dtype=torch.bool), 1)
        elif mask is not None:
            full = torch.broadcast_to(mask, (2, heads, queries, key.shape[1])).reshape(2 * heads, queries, -1)
            hidden = ~full if mask.dtype == torch.bool else full
        output, weights = module(query, key, value, attn_mask=hidden, average_attn_weights=False)
        mean = module(query, key, value, attn_mask=hidden)[1]
        arguments = {"embed_dim": e, "num_heads": heads, **options}
        golden.add(name, {"module": arguments, "causal": causal}, module.state_dict(), query=query, mask=mask,
                   key=key if cross else None, value=value if cross else None,
                   output=output, weights=weights, average=mean)  # fmt: skip

    case("self")
    case("no_bias", bias=False)
    case("cross", key_len=7)
    case("kdim_vdim", key_len=7, kdim=10, vdim=6)
    case("vdim_no_bias", key_len=3, vdim=9, bias=False)
    case("causal", causal=True)
    attend = torch.rand(2, 4, 5, 7) < 0.7
    attend[..., 0] = True  # torch gives NaN for a query that sees nothing
    case("bool_mask", key_len=7, mask=attend)
    attend = torch.ones(2, 1, 1, 7, dtype=torch.bool)
    attend[1, ..., 4:] = False
    case("key_padding", key_len=7, mask=attend)
    case("float_mask", key_len=7, mask=random(5, 7))
    golden.save()


def make_t5():
    golden = Golden("t5")

    def case(name, decoder=False, table=True, cross=0, mask=None, past=0, queries=6, batch=2):
        config = T5Config(d_model=12, num_heads=3, d_kv=5, is_decoder=decoder, dropout_rate=0.0)
        config._attn_implementation = "eager"
        module = exact(T5Attention(config, has_relative_attention_bias=table, layer_idx=0))
        query = random(batch, queries, 12)
        key = random(batch, cross, 12) if cross else query
        added = None if mask is None else torch.where(mask, 0.0, torch.finfo(torch.float32).min).double()
        bias = module.compute_bias(queries, key.shape[1]) if table else None
        if past:  # the last queries alone, as with a cache of the keys before them
            bias = module.compute_bias(queries - past, queries, past_seen_tokens=past)
            query = query[:, past:]
            # what the attention would see with cached keys: the keys of all positions, the queries of the last
            q, k, v = (layer(x).reshape(batch, -1, 3, 5).transpose(1, 2) for layer, x in
                       ((module.q, query), (module.k, key), (module.v, key)))  # fmt: skip
            weights = torch.softmax(q @ k.transpose(2, 3) + bias, -1)
            output = module.o((weights @ v).transpose(1, 2).reshape(batch, queries - past, -1))
        else:
            output, weights = module(query, mask=added, key_value_states=key if cross else None,
                                     output_attentions=True)[:2]  # fmt: skip
            scores = (module.q(query).reshape(batch, -1, 3, 5).transpose(1, 2)
                      @ module.k(key).reshape(batch, -1, 3, 5).permute(0, 2, 3, 1))  # fmt: skip
            scores = scores + (0 if bias is None else bias) + (0 if added is None else added)
            weights = torch.softmax(scores, -1)
        arguments = {"embed_dim": 12, "num_heads": 3, "head_dim": 5, "bidirectional": not decoder,
                     "relative_attention_bias": table}  # fmt: skip
        large = weights.numel() > 1000  # keep the file small: the output says enough
        golden.add(name, arguments, module.state_dict(), query=query, key=key if cross or past else None, mask=mask,
                   output=output, weights=None if large else weights, bias=None if large else bias)  # fmt: skip

    case("encoder")
    # past the last exact bucket and past max_distance, on both sides
    case("encoder_long", queries=140, batch=1)
    case("decoder", decoder=True)
    case("decoder_masked", decoder=True, mask=torch.tril(torch.ones(6, 6, dtype=torch.bool))[None, None])
    case("decoder_cached", decoder=True, past=4)
    attend = torch.ones(2, 1, 1, 9, dtype=torch.bool)
    attend[0, ..., 5:] = False
    case("cross", decoder=True, table=False, cross=9)
    case("cross_masked", decoder=True, table=False, cross=9, mask=attend)
    case("cross_with_table", cross=9)
    distances = torch.arange(-300, 301)
    for name, both in (("buckets_both", True), ("buckets_one", False)):
        golden.add(name, {"bidirectional": both}, distances=distances,
                   buckets=T5Attention._relative_position_bucket(distances, both))  # fmt: skip
    golden.save()


def make_rope():
    golden = Golden("rope")
    x = torch.randn(1, 2, 40, 8)

    def llama(name, arguments, parameters, offset=0):
        config = LlamaConfig(hidden_size=16, num_attention_heads=2, head_dim=8, max_position_embeddings=24,
                             rope_parameters=parameters)  # fmt: skip
        positions = torch.arange(offset, offset + 40)[None]
        cos, sin = modeling_llama.LlamaRotaryEmbedding(config)(x, positions)
        output, _ = modeling_llama.apply_rotary_pos_emb(x, x, cos, sin)
        golden.add(name, {"dim": 8, "max_seq_len": 24, "offset": offset, **arguments}, x=x, output=output)

    llama("llama", {}, {"rope_type": "default", "rope_theta": 10000.0})
    llama("llama_offset", {"base": 500.0}, {"rope_type": "default", "rope_theta": 500.0}, offset=11)
    for kind in ("linear", "dynamic"):
        llama(f"llama_{kind}", {"scaling": {"type": kind, "factor": 3.0}},
              {"rope_type": kind, "factor": 3.0, "rope_theta": 10000.0})  # fmt: skip
    config = GPTJConfig(n_embd=16, n_head=2, rotary_dim=8)
    table = modeling_gptj.create_sinusoidal_positions(64, config.rotary_dim)
    for name, offset in (("gptj", 0), ("gptj_offset", 9)):
        sin, cos = table[None, offset : offset + 40].chunk(2, dim=-1)
        rows = x.transpose(1, 2)  # GPT-J turns (B, S, H, D)
        turned = modeling_gptj.apply_rotary_pos_emb(rows, sin, cos).transpose(1, 2)
        golden.add(name, {"dim": 8, "interleaved": True, "offset": offset}, x=x, output=turned)
    golden.save()


def make_sdpa():
    golden = Golden("sdpa")

    def case(name, shape=(2, 4, 2, 5, 7, 6, 6), mask=None, causal=False, scale=None):
        b, h, hk, sq, sk, d, dv = shape
        q, k, v = random(b, h, sq, d), random(b, hk, sk, d), random(b, hk, sk, dv)
        output = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=h != hk
        )
        golden.add(name, {"causal": causal, "scale": scale}, q=q, k=k, v=v, mask=mask, output=output)

    case("plain", (2, 4, 4, 5, 7, 6, 6))
    case("grouped")
    case("one_key_head", (2, 3, 1, 5, 7, 6, 9))
    case("scale", scale=0.2)
    case("causal", (2, 4, 2, 11, 11, 6, 6), causal=True)
    attend = torch.rand(2, 4, 5, 7) < 0.6
    attend[..., 0] = True
    case("bool_mask", mask=attend)
    case("row_mask", mask=attend[:, :1, :1])
    case("float_mask", mask=random(4, 5, 7))
    golden.save()


@torch.enable_grad()
def make_transformer():
    """Layers of encoders and decoders, with all gradients of ``sum(output * grad_output)``."""
    golden = Golden("transformer")

    def case(name, decoder=False, causal=False, mask=None, memory_mask=None, **options):
        kind = torch.nn.TransformerDecoderLayer if decoder else torch.nn.TransformerEncoderLayer
        arguments = {"d_model": 12, "nhead": 3, "dim_feedforward": 20, "dropout": 0.0, **options}
        module = exact(kind(**arguments, batch_first=True))
        x, memory = random(2, 5, 12).requires_grad_(), random(2, 7, 12).requires_grad_()
        hidden = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1) if causal else None
        padding = None if mask is None else ~mask
        if decoder:
            output = module(x, memory, tgt_mask=hidden, tgt_key_padding_mask=padding,
                            memory_key_padding_mask=None if memory_mask is None else ~memory_mask)  # fmt: skip
        else:
            output = module(x, src_mask=hidden, src_key_padding_mask=padding)
        grad_output = random(*output.shape)
        output.backward(grad_output)
        grads = {f"grad/{key}": parameter.grad for key, parameter in module.named_parameters()}
        rows = {"mask": mask, "memory_mask": memory_mask}
        rows = {key: None if row is None else row[:, None, None] for key, row in rows.items()}
        golden.add(name, {"decoder": decoder, "causal": causal, "module": arguments}, module.state_dict(), x=x,
                   output=output, grad_output=grad_output, grad_x=x.grad, **grads, **rows,
                   **({"memory": memory, "grad_memory": memory.grad} if decoder else {}))  # fmt: skip

    seen, known = torch.ones(2, 5, dtype=torch.bool), torch.ones(2, 7, dtype=torch.bool)
    seen[1, 3:], known[0, 5:] = False, False
    case("encoder")
    case("encoder_first", norm_first=True, activation="gelu", mask=seen)
    case("encoder_causal", causal=True, bias=False)
    case("decoder", decoder=True, causal=True, memory_mask=known)
    case("decoder_first", decoder=True, norm_first=True, activation="gelu", mask=seen, layer_norm_eps=0.5)
    golden.save()


if __name__ == "__main__":
    torch.manual_seed(1)
    make_transformer()
    torch.manual_seed(0)
    with torch.no_grad():
        make_mha()
        make_t5()
        make_rope()
        make_sdpa()
