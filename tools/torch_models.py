"""Torch's side of bench_models.py: models of the same configurations, with random weights, eager and in CUDA graphs."""

from __future__ import annotations

import time


def moment(torch, device: str):
    """A function that waits for the device."""
    return torch.cuda.synchronize if device == "cuda" else lambda: None


def graphed(torch, call):
    """The call captured in a CUDA graph: a function that replays it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


class Llama:
    """Llama of plain tensors: keys and values in arrays of a fixed length, attention by torch's own function."""

    def __init__(self, torch, config: dict, batch: int, room: int, device: str, dtype) -> None:
        self.torch, self.config, self.room = torch, config, room
        width, inner = config["hidden_size"], config["intermediate_size"]
        heads, self.key_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.heads, self.dim = heads, width // heads
        layers = config["num_hidden_layers"]

        def drawn(*shape):
            return torch.randn(shape, device=device, dtype=dtype) * 0.02

        def caches():
            return [drawn(batch, self.key_heads, room, self.dim) for _ in range(layers)]

        self.embed, self.lm_head = (drawn(config["vocab_size"], width) for _ in range(2))
        self.layers = [
            (drawn((heads + 2 * self.key_heads) * self.dim, width), drawn(width, width), drawn(2 * inner, width),
             drawn(width, inner), drawn(width) + 1, drawn(width) + 1)
            for _ in range(layers)
        ]  # fmt: skip
        self.norm, self.k, self.v = drawn(width) + 1, caches(), caches()
        angles = torch.arange(room, device=device)[:, None] / config["rope_theta"] ** (
            torch.arange(0, self.dim, 2, device=device) / self.dim
        )
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def turned(self, x, places):
        """``(B, H, S, D)`` turned by its places."""
        half = self.dim // 2
        cos, sin, first, second = self.cos[places], self.sin[places], x[..., :half], x[..., half:]
        return self.torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    def __call__(self, ids, places, keys: int):
        """Logits after tokens ``(B, S)`` at ``places``, which see ``keys`` tokens; of the last token alone."""
        torch, f = self.torch, self.torch.nn.functional
        x, (batch, count), width = self.embed[ids], ids.shape, self.config["hidden_size"]
        for (qkv, output, widen, narrow, first, second), k_cache, v_cache in zip(
            self.layers, self.k, self.v, strict=True
        ):
            rows = f.linear(f.rms_norm(x, (width,), first, 1e-5), qkv).view(batch, count, -1, self.dim).transpose(1, 2)
            q, k, v = rows.split([self.heads, self.key_heads, self.key_heads], 1)
            k_cache.index_copy_(2, places, self.turned(k, places))
            v_cache.index_copy_(2, places, v)
            attended = f.scaled_dot_product_attention(
                self.turned(q, places), k_cache[:, :, :keys], v_cache[:, :, :keys], is_causal=count > 1, enable_gqa=True
            )
            x = x + f.linear(attended.transpose(1, 2).reshape(batch, count, width), output)
            gate, up = f.linear(f.rms_norm(x, (width,), second, 1e-5), widen).chunk(2, -1)
            x = x + f.linear(f.silu(gate) * up, narrow)
        return torch.nn.functional.linear(f.rms_norm(x[:, -1], (width,), self.norm, 1e-5), self.lm_head)


def transformers_model(torch, config: dict, device: str, dtype):
    """transformers' model of the configuration, with random weights."""
    import transformers

    found = dict(config)
    (name,) = found.pop("architectures")
    made = getattr(transformers, name)
    known = made.config_class(**{key: value for key, value in found.items() if key != "model_type"})
    if name == "WhisperForConditionalGeneration":
        known.suppress_tokens = known.begin_suppress_tokens = None
    options = {"add_pooling_layer": False} if name in ("BertModel", "ViTModel") else {}
    with torch.device(device):
        model = made(known, **options)
    return model.to(dtype).eval()


def written(torch, model, inputs: dict, count: int, device: str) -> tuple[float, float]:
    """Seconds to the first and to the last of ``count`` greedy tokens of an encoder with a decoder."""
    wait = moment(torch, device)
    wait()
    start = time.perf_counter()
    (given,) = inputs.values()
    states = model.get_encoder()(given)
    ids, past, first = torch.full((len(given), 1), 3, device=device), None, 0.0
    for place in range(count):
        out = model(encoder_outputs=states, decoder_input_ids=ids, past_key_values=past, use_cache=True)
        ids, past = out.logits[:, -1:].argmax(-1), out.past_key_values
        ids.tolist()  # as a program that prints it would
        if not place:
            first = time.perf_counter() - start
    return first, time.perf_counter() - start
