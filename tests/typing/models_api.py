"""The names of grilly.models, and what trains them, as public_api.py has those of grilly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

import grilly
import grilly.functional as F
from grilly import models

Floats = NDArray[np.float32]


def whole_models(mask: NDArray[np.int64], cache: models.Cache) -> None:
    def report(done: int, total: int) -> None: ...

    try:
        model = models.load("folder", "float16", grilly.Compute(), progress=report, ignore=["field"])
        model = models.load("folder", "float32", precision="high", offload="auto", cache_dtype="q8_0")
        assert_type(model.offload, models.Offload | None)
    except grilly.ModelError as error:
        wrong: ValueError = error
        raise wrong from None
    assert_type(model, models.Model)
    assert_type(model.dtype, np.dtype[Any])
    output: models.Output = model(input_ids=mask, attention_mask=mask)
    assert_type(output["logits"], Any)
    assert "logits" in output and list(output)
    assert_type(models.ARCHITECTURES, dict[str, str])
    packed = models.GGUF("model.gguf").tensor("output.weight")
    assert_type(packed, grilly.QuantizedTensor)
    assert_type(packed.shape, tuple[int, ...])
    assert_type(models.GGUF("model.gguf").tensors, dict[str, models.StoredTensor])
    assert_type(grilly.quantization.TYPES["Q8_0"].block, int)
    assert_type(grilly.quantize(packed.dequantize("float16"), "Q8_0"), grilly.QuantizedTensor)
    models.write_gguf("folder", "model.gguf", "Q4_K_M")
    grilly.quantize(packed.dequantize(), 8)  # type: ignore[arg-type]
    assert_type(grilly.Compute().tensor(packed), grilly.QuantizedTensor)
    assert_type(F.linear(grilly.Compute().tensor(mask), packed), grilly.Tensor)
    assert_type(F.embedding(grilly.Compute().tensor(mask), packed), grilly.Tensor)
    F.embedding(mask, packed, "0")  # type: ignore[call-overload]
    tokenizer = models.Tokenizer("folder", longest=8)
    ids, kept = tokenizer.encode(["text"])
    assert_type(ids, NDArray[np.int64])
    assert_type(tokenizer.decode(ids[0]), str)
    said = tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], add_generation_prompt=True)
    assert_type(said, str)
    assert_type(tokenizer.has_chat_template, bool)
    ids, kept = tokenizer.encode([said], add_special_tokens=False)
    tokenizer.apply_chat_template("Hello")  # type: ignore[arg-type]
    encoder = models.SentenceEncoder.load("folder", progress=True)
    assert_type(encoder.encode("text", batch_size=2), Floats)
    assert_type(cache.max_len, int)
    samples, rate = models.read_sound("speech.flac", 16000)
    assert_type(rate, int)
    assert_type(models.log_mel(samples, 128, n_samples=480000), Floats)
    transcriber = models.Transcriber.load("folder", "float16", progress=False)
    assert_type(transcriber.transcribe(samples, rate, language="en", task="translate", max_new_tokens=9), str)
    for part in transcriber.stream(samples, rate):
        assert_type(part, str)
    assert_type(transcriber.detect_language(samples), str)
    transcriber.transcribe(samples)  # type: ignore[call-arg]
    models.log_mel(samples, bands=80)  # type: ignore[call-arg]
    models.read_sound(3)  # type: ignore[arg-type]
    models.load(3)  # type: ignore[arg-type]
    models.load("folder", precision="low")  # type: ignore[arg-type]
    models.load("folder", cache_dtype="q5_0")  # type: ignore[arg-type]
    models.Tokenizer()  # type: ignore[call-arg]


def finetuning(model: models.Model, tokens: NDArray[np.int32]) -> None:
    assert_type(grilly.lora(model, 8, alpha=16, targets=["q_proj"], dropout=0.1), models.Model)
    grilly.lora(model, rslora=True, trained=["score"], rng=0)
    grilly.lora(model, targets=3)  # type: ignore[arg-type]
    model.save_adapter("adapter")
    model.load_adapter("adapter")
    model.merge_adapter()
    model.unmerge_adapter()
    model.merge_and_unload()
    model.unload()
    model.checkpoint_layers().save("folder")
    tokenizer = models.Tokenizer("folder")
    samples = grilly.data.read_jsonl("data.jsonl", tokenizer)
    assert_type(samples, list[grilly.data.Sample])
    samples.append(grilly.data.of_text(tokenizer, "text"))
    samples += grilly.data.of_chat(tokenizer, [{"role": "user", "content": "Hello"}])
    rows = grilly.data.pack(samples, 512)
    assert_type(rows, grilly.data.Rows)
    assert_type(rows.filled, float)
    batches = grilly.data.batches(rows, 4, shuffle=False, seed=1, drop_last=True, epochs=None, backend=grilly.Compute())
    assert_type(batches, grilly.data.Batches)
    for batch in batches:
        assert_type(batch, dict[str, grilly.Tensor])
    again = grilly.data.batches(tokens, 4, 512, state=batches.state)
    assert_type(next(again)["labels"] == grilly.data.IGNORED, grilly.Tensor)
    grilly.data.batches(tokens, "4", 512)  # type: ignore[arg-type]
