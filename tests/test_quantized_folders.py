"""Folders of quantized safetensors: their numbers, layers and models, what is warned of, and what is refused."""

import copy
import gc
import json
import warnings

import numpy as np
import pytest

import grilly
from grilly import ModelError, models

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from quantized_folders import FORMATS, compressed, float8, gptq, scheme  # noqa: E402

WIDTH, INNER, HEADS, KEY_HEADS, VOCABULARY = 128, 256, 4, 2, 61
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": INNER,
    "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "num_hidden_layers": 1, "vocab_size": VOCABULARY,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "torch_dtype": "float32",
}  # fmt: skip
KEYS = KEY_HEADS * WIDTH // HEADS
LAYERS = {"self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (KEYS, WIDTH), "self_attn.v_proj": (KEYS, WIDTH),
          "self_attn.o_proj": (WIDTH, WIDTH), "mlp.gate_proj": (INNER, WIDTH), "mlp.up_proj": (INNER, WIDTH),
          "mlp.down_proj": (WIDTH, INNER)}  # fmt: skip
IDS = np.arange(18).reshape(2, 9) * 5 % VOCABULARY


def floats(rng):
    """The tensors that are not quantized."""
    found = {"model.embed_tokens.weight": (VOCABULARY, WIDTH), "lm_head.weight": (VOCABULARY, WIDTH)}
    tensors = {name: torch.from_numpy(rng.standard_normal(shape).astype(np.float32)) for name, shape in found.items()}
    norms = ("model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm")
    return tensors | {f"{name}.weight": torch.ones(WIDTH) for name in norms}


def write(folder, tensors, **fields):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | fields))
    safetensors.save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def made(draw, options=(), seed=0, shapes=LAYERS):
    """The tensors of a model and the numbers of its matrices; q, k and v have columns in one order, as files do."""
    tensors, plain = floats(np.random.default_rng(seed)), {}
    for number, (name, shape) in enumerate(shapes.items()):
        options = dict(options)
        if options.get("group") == 128 and draw.__name__ == "awq":
            options["group"] = shape[1]
        rng = np.random.default_rng([seed, number])
        if options.get("act") and draw is gptq:
            together = {"self_attn.k_proj": 0, "self_attn.v_proj": 0, "self_attn.q_proj": 0, "mlp.up_proj": 4}
            order = np.random.default_rng(together.get(name, number))
            index = order.permutation(np.arange(shape[1]) // options.get("group", 32))
            parts, numbers = draw(rng, *shape, **{**options, "act": False, "index": index})
        else:
            parts, numbers = draw(rng, *shape, **options)
        full = f"model.layers.0.{name}"
        tensors |= {f"{full}.{part}": tensor for part, tensor in parts.items()}
        plain[f"{full}.weight"] = numbers
    return tensors, plain


def written(folder, name, **fields):
    """A folder of a format, and its matrices."""
    config, draw, options, _ = FORMATS[name]
    tensors, plain = made(draw, options)
    return write(folder, tensors, quantization_config=config, **fields), plain


def plain_folder(folder, plain):
    tensors = {name: torch.from_numpy(numbers.astype(np.float32)) for name, numbers in plain.items()}
    return write(folder, floats(np.random.default_rng(0)) | tensors)


def assert_close(found, wanted):
    size = np.abs(wanted).max()
    assert np.abs(found - wanted).max() < 2e-5 * size


@pytest.mark.parametrize("name", FORMATS)
def test_models(vulkan_backend, tmp_path, name):
    """The weights stay as they are on the device, and give what the same numbers as floats give."""
    folder, plain = written(tmp_path / "folder", name)
    with warnings.catch_warnings():
        warnings.simplefilter("error" if name != "packed-act" else "ignore")  # whose q, k and v have different orders
        model = models.load(folder, backend=vulkan_backend)
    down = model.layers[0].mlp.narrow.weight.data
    wanted = FORMATS[name][3].partition(":")
    assert isinstance(down, grilly.QuantizedTensor)
    assert down.type.partition(":")[0] == wanted[0] and (wanted[2] in ("128", down.type.partition(":")[2]))
    exact = plain["model.layers.0.mlp.down_proj.weight"]
    np.testing.assert_allclose(down.dequantize().numpy(), exact, rtol=3e-7, atol=1e-30)
    x = np.random.default_rng(1).standard_normal((3, INNER)).astype(np.float32)
    for rows in (x[:1], x, np.tile(x, (12, 1))):
        found = grilly.functional.linear(vulkan_backend.tensor(rows), down).numpy()
        bound = 1e-6 * (np.abs(rows).astype(np.float64) @ np.abs(exact).T) + 1e-5 * np.abs(exact).max()
        assert (np.abs(found - rows.astype(np.float64) @ exact.T) <= bound).all()
    other = models.load(plain_folder(tmp_path / "plain", plain), backend=vulkan_backend)
    assert_close(model(IDS).logits, other(IDS).logits)
    assert_close(model(IDS[:1, :1]).logits, other(IDS[:1, :1]).logits)


@pytest.mark.parametrize("name", ["awq", "gptq-8-sym-act", "nf4", "fp8"])
def test_both_runtimes(backend, tmp_path, name):
    folder, plain = written(tmp_path / "folder", name)
    model = models.load(folder, backend=backend)
    weight, exact = model.layers[0].mlp.narrow.weight.data, plain["model.layers.0.mlp.down_proj.weight"]
    np.testing.assert_allclose(weight.dequantize().numpy(), exact, rtol=3e-7, atol=1e-30)
    x = np.random.default_rng(1).standard_normal((2, INNER)).astype(np.float32)
    found = grilly.functional.linear(backend.tensor(x), weight).numpy()
    np.testing.assert_allclose(found, x @ exact.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["awq", "gptq-act", "nf4", "fp8-blocks", "mxfp4", "int8-zeros"])
def test_floats_where_they_are_asked_for(vulkan_backend, tmp_path, name):
    folder, plain = written(tmp_path / "folder", name)
    model = models.load(folder, "float32", vulkan_backend, dequantize=True)
    weight = model.layers[0].attention.output.weight.numpy()
    np.testing.assert_allclose(weight, plain["model.layers.0.self_attn.o_proj.weight"], rtol=3e-7, atol=1e-30)


@pytest.mark.parametrize("name", ["gptq-act", "nf4"])
def test_saved_as_floats(vulkan_backend, tmp_path, name):
    folder, _ = written(tmp_path / "folder", name)
    model = models.load(folder, backend=vulkan_backend)
    model.save(tmp_path / "saved")
    saved = models.load(tmp_path / "saved", backend=vulkan_backend)
    assert "quantization_config" not in json.loads((tmp_path / "saved" / "config.json").read_text())
    assert_close(saved(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize("name", ["awq", "gptq-act", "nf4", "fp8-blocks", "mxfp4", "int8-zeros"])
def test_gradients_of_adapters(vulkan_backend, tmp_path, name):
    """Those that the same numbers as floats give, through all layers (QLoRA)."""
    folder, plain = written(tmp_path / "folder", name)
    found = []

    def loss(model, ids):
        logits = model(ids).logits
        return grilly.sum(logits * logits) / logits.size

    for which in (folder, plain_folder(tmp_path / "plain", plain)):
        model = models.load(which, backend=vulkan_backend)
        grilly.lora(model, 2, rng=0)
        rng = np.random.default_rng(2)
        for key, parameter in model.named_parameters():
            if key.endswith("lora_B"):
                parameter.data = rng.normal(0, 0.2, parameter.shape).astype(parameter.dtype)
        found.append(grilly.value_and_grad(loss)(model, IDS)[1])
    assert found[0].keys() == found[1].keys() and len(found[0]) > 0
    for key, gradient in found[1].items():
        wanted = gradient.numpy()
        np.testing.assert_allclose(found[0][key].numpy(), wanted, atol=1e-4 * np.abs(wanted).max(), err_msg=key)


@pytest.mark.parametrize("name", ["gptq-act", "int8-zeros"])
def test_layers_in_host_memory(vulkan_backend, tmp_path, name):
    """Quantized matrices are sent for each call, with the order of their columns."""
    folder, _ = written(tmp_path / "folder", name)
    whole, some = (models.load(folder, backend=vulkan_backend, offload=count) for count in (0, 1))
    assert some.offload.count == 1 and some.offload.nbytes < 2.2 * 8 * WIDTH * INNER
    np.testing.assert_array_equal(some(IDS).logits, whole(IDS).logits)
    np.testing.assert_array_equal(*(model.generate(IDS[:, :3], max_new_tokens=8) for model in (some, whole)))


@pytest.mark.filterwarnings("ignore:.*has no tokenizer.json")
def test_written_as_a_gguf_file(vulkan_backend, tmp_path):
    folder, _ = written(tmp_path / "folder", "awq")
    models.write_gguf(folder, tmp_path / "model.gguf", "F32")
    found, wanted = (models.load(one, backend=vulkan_backend)(IDS).logits for one in (tmp_path / "model.gguf", folder))
    assert_close(found, wanted)


def test_numbers_that_are_none(vulkan_backend, tmp_path):
    """They are found as the last matrix is read, and leave nothing on the device."""
    config, draw, options, _ = FORMATS["fp8"]
    tensors, _ = made(draw, options)
    tensors["model.layers.0.mlp.down_proj.weight"].view(torch.uint8)[5, 7] = 0x7F
    folder = write(tmp_path / "folder", tensors, quantization_config=config)
    gc.collect()
    before = vulkan_backend.memory().in_use
    with pytest.raises(ModelError, match="down_proj.weight has numbers that are none") as held:
        models.load(folder, backend=vulkan_backend)
    gc.collect()
    assert held.value.__traceback__ is not None and vulkan_backend.memory().in_use == before
    tensors["model.layers.0.mlp.up_proj.weight_scale"] = torch.tensor(float("inf"))
    with pytest.raises(ModelError, match="up_proj.weight_scale has numbers that are infinite or none; expected scales"):
        models.load(write(folder, tensors, quantization_config=config), backend=vulkan_backend)


def test_sixteen_bits(vulkan_backend, tmp_path):
    """config.json's dtype is that of what is computed; weights stay quantized."""
    folder, plain = written(tmp_path / "folder", "awq", torch_dtype="float16")
    model = models.load(folder, backend=vulkan_backend)
    assert model.dtype == np.float16 and model.layers[0].mlp.widen.weight.data.type == "UINT4:32"
    other = models.load(plain_folder(tmp_path / "plain", plain), backend=vulkan_backend)
    wanted = other(IDS).logits
    assert np.abs(model(IDS).logits.astype(np.float32) - wanted).max() < 2e-2 * np.abs(wanted).max()


def test_gradients_and_norms_with_columns_in_another_order(vulkan_backend, tmp_path):
    folder, plain = written(tmp_path / "folder", "gptq-act")
    weight = models.load(folder, backend=vulkan_backend).layers[0].mlp.widen.weight.data
    exact = np.concatenate([plain[f"model.layers.0.mlp.{name}_proj.weight"] for name in ("gate", "up")])
    rng = np.random.default_rng(2)
    grad, x = (rng.standard_normal((4, width)).astype(np.float32) for width in (2 * INNER, WIDTH))
    dx, dweight, _ = grilly.functional.linear_backward(vulkan_backend.tensor(grad), x, weight)
    np.testing.assert_allclose(dx.numpy(), grad @ exact, rtol=1e-4, atol=1e-4)
    assert dweight is None
    norm = rng.uniform(0.5, 1.5, WIDTH).astype(np.float32)
    found = grilly.functional.linear(vulkan_backend.tensor(x), weight, norm_weight=norm, norm_eps=1e-5).numpy()
    normed = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5) * norm
    np.testing.assert_allclose(found, normed @ exact.T, rtol=1e-4, atol=1e-4)
    rows = grilly.functional.embedding([3, 500], weight).numpy()
    np.testing.assert_allclose(rows, exact[[3, 500]], rtol=3e-7)


def test_what_kernels_do_not_read_becomes_floats(vulkan_backend, tmp_path):
    """With the memory that it takes said: groups that 32 does not divide or of no order, FP4, orders that differ."""
    base = FORMATS["gptq"][0]
    draws = {
        "groups of 16": (base | {"bits": 4, "group_size": 16}, gptq, {"group": 16}),
        "float32 scales": (base | {"bits": 4}, gptq, {"dtype": torch.float32}),
        "no order": (base | {"bits": 4, "desc_act": True}, gptq, {"index": None}),
        "fp4": (FORMATS["nf4"][0] | {"bnb_4bit_quant_type": "fp4"}, FORMATS["nf4"][1], {"kind": "fp4"}),
        "blocks over rows": (FORMATS["nf4"][0], FORMATS["nf4"][1], {"block": 512}),
        "orders": FORMATS["packed-act"][:3],
    }
    for name, (config, draw, options) in draws.items():
        if name == "no order":
            def draw(rng, n, k, **_):
                return gptq(rng, n, k, index=rng.integers(0, k // 32, k))
        tensors, plain = made(draw, options)
        folder = write(tmp_path / name, tensors, quantization_config=config)
        with pytest.warns(UserWarning, match="kernels do not read .*_proj.* become float32, which takes .* byte"):
            model = models.load(folder, backend=vulkan_backend)
        other = models.load(plain_folder(tmp_path / f"plain {name}", plain), backend=vulkan_backend)
        assert_close(model(IDS).logits, other(IDS).logits)


def test_several_schemes_in_one_folder(vulkan_backend, tmp_path):
    """Layers are found by their names, by patterns, and as linear layers."""
    config = scheme(format="mixed-precision")
    groups = config["config_groups"]
    groups["group_0"]["format"] = "pack-quantized"
    blocks = scheme(8, "block", type="float", format="", block_structure=[64, 64])
    groups["other"] = blocks["config_groups"]["group_0"]
    groups["other"] |= {"targets": ["re:.*down_proj$", "model.layers.0.self_attn.o_proj"], "format": "float-quantized"}
    tensors, plain = made(compressed, {})
    for number, name in enumerate(("mlp.down_proj", "self_attn.o_proj")):
        full = f"model.layers.0.{name}"
        tensors = {key: one for key, one in tensors.items() if not key.startswith(full)}
        parts, plain[f"{full}.weight"] = float8(np.random.default_rng(number), *LAYERS[name], blocks=(64, 64))
        tensors |= {f"{full}.{part}": tensor for part, tensor in parts.items()}
        tensors[f"{full}.input_scale"] = torch.ones(1)
    model = models.load(write(tmp_path / "folder", tensors, quantization_config=config), backend=vulkan_backend)
    assert model.layers[0].mlp.narrow.weight.data.type == "F8_E4M3:64"
    other = models.load(plain_folder(tmp_path / "plain", plain), backend=vulkan_backend)
    assert_close(model(IDS).logits, other(IDS).logits)


#: As published folders have them.
FOUND = {
    "awq": {"bits": 4, "group_size": 32, "modules_to_not_convert": None, "quant_method": "awq", "version": "gemm",
            "zero_point": True, "do_fuse": False},
    "gptq-act": {"batch_size": 1, "bits": 4, "block_name_to_quantize": None, "cache_block_outputs": True,
                 "damp_percent": 0.1, "dataset": None, "desc_act": True, "exllama_config": {"version": 1},
                 "group_size": 32, "max_input_length": None, "model_seqlen": None, "module_name_preceding_first_block":
                 None, "modules_in_block_to_quantize": None, "pad_token_id": None, "quant_method": "gptq", "sym": True,
                 "tokenizer": None, "true_sequential": True, "use_cuda_fp16": False, "use_exllama": True},
    "gptq": {"bits": 4, "checkpoint_format": "gptq", "desc_act": False, "group_size": 32, "lm_head": False,
             "meta": {"quantizer": ["a program"], "damp_percent": 0.05}, "pack_dtype": "int32", "quant_method": "gptq",
             "sym": True},
    "packed": {"config_groups": {"group_0": {"input_activations": None, "output_activations": None,
               "targets": ["Linear"],
               "weights": {"actorder": "weight", "block_structure": None, "dynamic": False, "group_size": 32,
                           "num_bits": 4, "observer": "mse", "observer_kwargs": {}, "strategy": "group",
                           "symmetric": True, "type": "int"}}},
               "format": "pack-quantized", "global_compression_ratio": 1.89, "ignore": ["lm_head"],
               "kv_cache_scheme": None, "quant_method": "compressed-tensors", "quantization_status": "compressed",
               "sparsity_config": {"format": "dense", "ignore": [], "targets": []}, "version": "0.10.3"},
    "int8": {"config_groups": {"group_0": {"input_activations": {"dynamic": True, "num_bits": 8, "strategy": "token",
             "symmetric": True, "type": "int"}, "targets": ["Linear"], "weights": {"dynamic": False, "num_bits": 8,
             "strategy": "channel", "symmetric": True, "type": "int"}}}, "format": "int-quantized",
             "quant_method": "compressed-tensors", "quantization_status": "frozen"},
    "nf4": {"_load_in_4bit": True, "_load_in_8bit": False, "bnb_4bit_compute_dtype": "bfloat16",
            "bnb_4bit_quant_storage": "uint8", "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True,
            "llm_int8_enable_fp32_cpu_offload": False, "llm_int8_has_fp16_weight": False, "llm_int8_skip_modules": None,
            "llm_int8_threshold": 6.0, "load_in_4bit": True, "load_in_8bit": False, "quant_method": "bitsandbytes"},
    "fp8-blocks": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                   "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]},
    "mxfp4": {"modules_to_not_convert": ["model.layers.*.self_attn"], "quant_method": "mxfp4"},
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_configurations_as_they_are_found(vulkan_backend, tmp_path, name):
    """Without a warning, also where layers without a bias have one of zeros."""
    _, draw, options, _ = FORMATS[name]
    tensors, _ = made(draw, options)
    tensors["model.layers.0.mlp.down_proj.bias"] = torch.zeros(WIDTH, dtype=torch.float16)
    folder = write(tmp_path / "folder", tensors, quantization_config=FOUND[name])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        models.load(folder, backend=vulkan_backend)
    tensors["model.layers.0.mlp.down_proj.bias"][3] = 1
    with pytest.warns(UserWarning, match="LlamaLM does not use model.layers.0.mlp.down_proj.bias"):
        models.load(write(folder, tensors, quantization_config=FOUND[name]), backend=vulkan_backend)


def changed(config, **fields):
    return {**copy.deepcopy(config), **fields}


REFUSED = {
    "method": ("awq", {"quant_method": "hqq"}, "quant_method is 'hqq'; expected one of awq, gptq"),
    "no method": ("awq", {"quant_method": None}, "quant_method is None"),
    "unknown option": ("awq", {"rotation": 3}, "quantization_config: not known: rotation"),
    "version": ("awq", {"version": "gemv"}, "version is 'gemv'; expected 'gemm'"),
    "bits": ("awq", {"bits": 3}, "bits is 3; expected 4"),
    "bits of gptq": ("gptq", {"bits": 3}, "bits is 3; expected 4 or 8"),
    "group": ("gptq", {"group_size": 0}, "group_size is 0; expected"),
    "another group": ("gptq", {"group_size": 64}, r"qzeros has shape .* of I32; expected"),
    "format": ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
    "rules": ("gptq", {"dynamic": {"+:x": {}}}, "dynamic is"),
    "scheme": ("packed", {"config_groups": {"a": {"targets": ["Linear"]}}}, "weights is missing; expected an object"),
    "cache": ("packed", {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme is"),
    "nothing": ("packed", {"config_groups": {}}, "config_groups is {}; expected an object of groups"),
    "both": ("nf4", {"load_in_8bit": True}, "load_in_4bit is True; expected either"),
    "fp8": ("fp8-blocks", {"weight_block_size": [128]}, "weight_block_size is"),
    "other blocks": ("fp8-blocks", {"weight_block_size": [64, 64]}, "weight_scale_inv has shape .* expected"),
    "e5m2": ("fp8", {"fmt": "e5m2"}, "fmt is 'e5m2'; expected 'e4m3'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_are_refused(vulkan_backend, tmp_path, name):
    base, fields, said = REFUSED[name]
    config, draw, options, _ = FORMATS[base]
    folder = write(tmp_path / "folder", made(draw, options)[0], quantization_config=changed(config, **fields))
    with pytest.raises(ModelError, match=said) as error:
        models.load(folder, backend=vulkan_backend)
    assert str(folder) in str(error.value)


def test_what_is_no_object_and_folders_without_the_method(vulkan_backend, tmp_path):
    for given, said in ((3, "quantization_config is 3; expected an object"),
                        (FORMATS["awq"][0], "the files have no tensor of it")):  # fmt: skip
        tensors = floats(np.random.default_rng(0))
        folder = write(tmp_path / "folder", tensors, quantization_config=given)
        with pytest.raises(ModelError, match=said):
            models.load(folder, backend=vulkan_backend)


def damaged(rng, tensors):
    """One tensor that is gone, of another shape or dtype, or of other numbers where these say something."""
    tensors = dict(tensors)
    name = rng.choice([name for name in tensors if "layers.0.mlp" in name or "self_attn" in name])
    tensor, way = tensors[name], rng.integers(5)
    if way == 0:
        del tensors[name]
    elif way == 1:
        some = tensor.reshape(-1)[: tensor.numel() // 2]
        tensors[name] = some if len(some) else torch.zeros(5, dtype=tensor.dtype)
    elif way == 2:
        tensors[name] = tensor.unsqueeze(0)
    elif way == 3:
        tensors[name] = torch.zeros(tensor.shape, dtype=torch.int16)
    else:
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).clone()
        raw[rng.integers(len(raw), size=3)] = torch.from_numpy(rng.integers(0, 256, 3).astype(np.uint8))
        tensors[name] = raw.view(tensor.dtype).reshape(tensor.shape)
    return tensors, way


@pytest.mark.parametrize("name", ["awq", "gptq-act", "packed-zeros", "int8", "nf4", "bnb-int8", "fp8-blocks", "mxfp4"])
def test_damaged_tensors(vulkan_backend, tmp_path, name):
    """A typed error, or a model where numbers alone are others: 504 files in all."""
    config, draw, options, _ = FORMATS[name]
    shapes = {key: (64, 128) if key.startswith("mlp") else shape for key, shape in LAYERS.items()}
    shapes["mlp.down_proj"] = (128, 64)
    tensors, _ = made(draw, {**options, "group": 64} if "group" in options else options, shapes=shapes)
    rng, refused = np.random.default_rng(len(name)), 0
    for number in range(63):
        others, way = damaged(rng, tensors)
        folder = write(tmp_path / "folder", others, quantization_config=config, intermediate_size=64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                models.load(folder, backend=vulkan_backend)
            except ModelError as error:
                refused += 1
                assert str(folder) in str(error), number
            else:
                assert way in (0, 4), (number, way)  # 0: a part that files may lack
    assert refused > 30


def test_damaged_fields(vulkan_backend, tmp_path):
    """Values of other kinds."""
    for name in ("awq", "gptq", "packed", "nf4", "fp8-blocks"):
        config, draw, options, _ = FORMATS[name]
        folder = write(tmp_path / name, made(draw, options)[0], quantization_config=config)
        for field in config:
            for value in (-7, "x", [1], {"a": 1}, 2**70, True, 1e300):
                fields = CONFIG | {"quantization_config": config | {field: value}}
                (folder / "config.json").write_text(json.dumps(fields))
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    try:
                        models.load(folder, backend=vulkan_backend)
                    except ModelError:
                        pass
