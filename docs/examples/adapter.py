"""LoRA of a small Llama: python adapter.py [FOLDER DATA.jsonl]

FOLDER holds a language model as transformers saves it, with tokenizer.json, and DATA.jsonl a chat in each line. Without
them a small model with random weights is made, and questions whose answers it cannot know. Adapters learn them, are
written as the package peft reads them, and are read again. Run first: pip install "grilly-vulkan[models]"
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import tokenizers
from random_folder import write_folder

import grilly
from grilly import data, models, optim
from grilly import functional as F

WIDTH, INNER, HEADS, LAYERS = 64, 128, 4, 2
CITIES = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Greece": "Athens", "Japan": "Tokyo", "Peru": "Lima"}
SPECIAL = ["<unk>", "</s>", "<user>", "<assistant>"]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def small_llama(folder):
    """A Llama with random weights, whose tokens are words."""
    words = [*SPECIAL, *"What is the capital of ? The .".split(), *CITIES, *CITIES.values()]
    words = list(dict.fromkeys(words))
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": WIDTH, "intermediate_size": INNER,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "vocab_size": len(words),
        "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "eos_token_id": 1,
    }  # fmt: skip
    shapes = {"model.embed_tokens.weight": [len(words), WIDTH], "model.norm.weight": [WIDTH],
              "lm_head.weight": [len(words), WIDTH]}  # fmt: skip
    for layer in range(LAYERS):
        below = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{below}.{norm}.weight"] = [WIDTH]
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes[f"{below}.self_attn.{name}.weight"] = [WIDTH, WIDTH]
        shapes |= {f"{below}.mlp.{name}.weight": [INNER, WIDTH] for name in ("gate_proj", "up_proj")}
        shapes[f"{below}.mlp.down_proj.weight"] = [WIDTH, INNER]
    write_folder(folder, config, shapes)
    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    told = {"tokenizer_class": "TokenizersBackend", "chat_template": TEMPLATE, "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder


def questions(file):
    """A chat in each line."""
    with open(file, "w", encoding="utf-8") as opened:
        for country, city in CITIES.items():
            asked, told = f"What is the capital of {country} ?", f"The capital of {country} is {city} ."
            chat = [{"role": "user", "content": asked}, {"role": "assistant", "content": told}]
            opened.write(json.dumps({"messages": chat}) + "\n")
    return file


def loss_of(model, batch):
    """Of the answers' tokens."""
    labels = batch["labels"].reshape(-1)
    logits = model(**{name: array for name, array in batch.items() if name != "labels"}).logits
    return F.cross_entropy(logits.reshape(len(labels), -1), labels)


def train(model, rows, steps, rate=1e-2, batch_size=2):
    """The loss of each step."""
    optimizer = optim.AdamW(optim.warmup_cosine(rate, steps // 10, steps), max_grad_norm=1.0)
    losses = []
    for _, batch in zip(range(steps), data.batches(rows, batch_size, epochs=None), strict=False):
        loss, gradients = grilly.value_and_grad(loss_of)(model, batch)
        optimizer.update(model, gradients)
        losses.append(loss)
    return [float(loss) for loss in losses]


def answer(model, tokenizer, question):
    """What the model says."""
    chat = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)
    ids, mask = tokenizer.encode([chat], add_special_tokens=False)
    return tokenizer.decode(model.generate(ids, mask, max_new_tokens=12)[0, ids.shape[1] :])


def run(folder, file, adapter, steps=60):
    """Teach a model what a file says, and give a question's answer before and after, and the losses."""
    tokenizer, model = models.Tokenizer(folder), models.load(folder, "float32", progress=False)
    question = json.loads(Path(file).read_text(encoding="utf-8").splitlines()[0])["messages"][0]["content"]
    before = answer(model, tokenizer, question)
    grilly.lora(model, rank=8, alpha=16, rng=0)
    losses = train(model, data.pack(data.read_jsonl(file, tokenizer), 48), steps)
    model.save_adapter(adapter)
    again = models.load(folder, "float32", progress=False)
    again.load_adapter(adapter)
    again.merge_and_unload()
    return question, before, answer(again, tokenizer, question), losses


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        given = sys.argv[1:] or [small_llama(Path(made) / "llama"), questions(Path(made) / "data.jsonl")]
        question, before, after, losses = run(*given, Path(made) / "adapter")
    print(question)
    print(f"before: {before}")
    print(f"after:  {after}")
    print(f"loss:   {losses[0]:.2f}, then {np.mean(losses[-5:]):.2f}")
