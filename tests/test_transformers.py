"""grilly.transformers: small models with random weights, against "eager", and "sdpa" where the model has it."""

import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import grilly

pytestmark = pytest.mark.needs("torch", "transformers")
if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
    import torch
    import transformers as hf

    import grilly.transformers

    grilly.transformers.register()


@pytest.fixture(autouse=True)
def chosen(vulkan_backend):
    former = grilly.use(vulkan_backend)
    torch.manual_seed(0)
    yield
    grilly.use(former)


SMALL = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
DECODER = dict(SMALL, vocab_size=64, num_key_value_heads=2, max_position_embeddings=64,
               pad_token_id=0, bos_token_id=1, eos_token_id=2)  # fmt: skip
WHISPER = dict(
    vocab_size=64, d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
    encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8, max_source_positions=16, max_target_positions=16,
    pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, begin_suppress_tokens=None,
)  # fmt: skip
DECODERS = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**{**DECODER, "num_hidden_layers": 1})),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**DECODER, sliding_window=4)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**{**DECODER, "num_hidden_layers": 1})),
    "gemma2": lambda: hf.Gemma2ForCausalLM(
        hf.Gemma2Config(**DECODER, head_dim=8, sliding_window=4, attn_logit_softcapping=2.0)
    ),
    "gpt_oss": lambda: hf.GptOssForCausalLM(
        hf.GptOssConfig(**DECODER, head_dim=8, sliding_window=4, num_local_experts=2, num_experts_per_tok=1)
    ),
}
OTHERS = {
    "t5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0)
    ),
    "bert": lambda: hf.BertModel(hf.BertConfig(vocab_size=64, **SMALL)),
    "vit": lambda: hf.ViTModel(hf.ViTConfig(image_size=16, patch_size=4, **SMALL)),
    "clip": lambda: hf.CLIPModel(
        hf.CLIPConfig(
            text_config=dict(vocab_size=64, max_position_embeddings=16, bos_token_id=1, eos_token_id=2, **SMALL),
            vision_config=dict(image_size=16, patch_size=4, **SMALL), projection_dim=16,
        )
    ),
    "whisper": lambda: hf.WhisperForConditionalGeneration(hf.WhisperConfig(**WHISPER)),
}  # fmt: skip


def choose(model, way):
    model.set_attn_implementation(way)
    if model.config._attn_implementation != way and type(model).__name__.startswith("T5"):
        pytest.skip(f"T5 of transformers {hf.__version__} does not go through AttentionInterface")
    assert model.config._attn_implementation == way


def compare(model, call, count):
    """Outputs, gradients of all parameters, and what is generated, by every implementation that the model has."""
    found = {}
    ways = ("eager", "sdpa", "grilly") if type(model)._supports_sdpa else ("eager", "grilly")
    for way in ways:
        choose(model, way)
        model.zero_grad()
        out, generated = call(model)
        # Not the sum of squares: of what a model normalises at its end that is given, and its gradient nothing.
        out.backward(torch.linspace(-1, 1, out.numel()).view_as(out))
        found[way] = out.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, generated
    out, grads, generated = found.pop("grilly")
    assert grads
    for want, want_grads, want_generated in found.values():
        torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-5)
        assert grads.keys() == want_grads.keys()
        for name, gradient in grads.items():
            bound = 1e-4 * max(float(want_grads[name].abs().max()), 1e-3)
            assert (gradient - want_grads[name]).abs().max() <= bound, name
        assert torch.equal(generated, want_generated)
    others = len(found)
    count(f"models of transformers {hf.__version__}", {
        "models": 1, "comparisons with eager and sdpa": others, "gradients": others * len(grads),
        "runs of generate": others * bool(generated.numel()),
    })  # fmt: skip


@pytest.mark.parametrize("name", DECODERS)
def test_decoders(name, count):
    """Left and right padding, generation with a cache, gradients.

    Rows of padding, which see nothing, are left out: there "eager" has means and the others zeros.
    """
    model = DECODERS[name]().eval()
    for layer in model.model.layers if name == "gpt_oss" else ():
        layer.self_attn.sinks.data.normal_()
    ids = torch.randint(3, 64, (2, 9))
    left = torch.ones(2, 9, dtype=torch.long)
    left[0, :3] = 0
    right = left.flip(1)

    def call(model):
        outs = [model(input_ids=ids, attention_mask=mask).logits[mask.bool()] for mask in (left, right)]
        with torch.no_grad():
            tokens = model.generate(input_ids=ids, attention_mask=left, max_new_tokens=4, do_sample=False)
        return torch.cat(outs), tokens

    compare(model, call, count)


def given(name):
    """A call's arguments for a model, and what of its output is compared."""
    if name in DECODERS:
        return {"input_ids": torch.randint(3, 64, (2, 9))}, lambda out: out.logits
    ids, mask = torch.randint(3, 60, (2, 7)), torch.ones(2, 7, dtype=torch.long)
    mask[0, 5:] = 0
    pixels, texts = {"pixel_values": torch.randn(2, 3, 16, 16)}, {"input_ids": ids, "attention_mask": mask}
    return {
        "t5": ({**texts, "decoder_input_ids": ids[:, :5]}, lambda out: out.logits),
        "whisper": ({"input_features": torch.randn(2, 8, 32), "decoder_input_ids": ids[:, :5]}, lambda out: out.logits),
        "vit": (pixels, lambda out: out.last_hidden_state),
        "bert": (texts, lambda out: out.last_hidden_state[mask.bool()]),
        "clip": ({**texts, **pixels}, lambda out: torch.cat([out.text_embeds, out.image_embeds])),
    }[name]


@pytest.mark.parametrize("name", OTHERS)
def test_other_models(name, count):
    model = OTHERS[name]().eval()
    arguments, of = given(name)
    prompt = {key: value for key, value in arguments.items() if key != "decoder_input_ids"}

    def call(model):
        out = of(model(**arguments))
        if "decoder_input_ids" not in arguments:
            return out, torch.zeros(0)
        with torch.no_grad():
            return out, model.generate(**prompt, max_new_tokens=4, do_sample=False)

    compare(model, call, count)


@pytest.mark.parametrize("name", [*DECODERS, *OTHERS])
def test_from_pretrained(name, tmp_path):
    """What goes through AttentionInterface is not refused, and is as "eager"; T5 of transformers 5.0.0 is refused."""
    model = (DECODERS | OTHERS)[name]()
    arguments, of = given(name)
    model.save_pretrained(tmp_path)
    eager, ours = (type(model).from_pretrained(tmp_path, attn_implementation=way).eval() for way in ("eager", "grilly"))
    if name == "t5" and not type(model)._can_set_attn_implementation():
        with pytest.raises(NotImplementedError, match="T5 of transformers .* does not go through AttentionInterface"):
            ours(**arguments)
        return
    torch.testing.assert_close(of(ours(**arguments)), of(eager(**arguments)), rtol=1e-4, atol=1e-5)


OTHER_WAYS = {
    "bloom": lambda: hf.BloomModel(hf.BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4)),
    "mpt": lambda: hf.MptModel(hf.MptConfig(vocab_size=64, d_model=32, n_layers=1, n_heads=4)),
    "mpnet": lambda: hf.MPNetModel(hf.MPNetConfig(vocab_size=64, **SMALL)),
    "roformer": lambda: hf.RoFormerModel(hf.RoFormerConfig(vocab_size=64, **SMALL)),
}
BOTH = dict(
    vocab_size=64, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
    encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    decoder_start_token_id=2,
)  # fmt: skip
EAGER_ALONE = {
    "pegasus_x": lambda: hf.PegasusXModel(hf.PegasusXConfig(**BOTH, block_size=4, num_global_tokens=4)),
    "nllb_moe": lambda: hf.NllbMoeModel(hf.NllbMoeConfig(**BOTH, num_experts=2, encoder_sparse_step=2,
                                                         decoder_sparse_step=2)),
    "bigbird_pegasus": lambda: hf.BigBirdPegasusModel(hf.BigBirdPegasusConfig(**BOTH, attention_type="original_full")),
    "splinter": lambda: hf.SplinterModel(hf.SplinterConfig(vocab_size=64, **SMALL)),
    "clap": lambda: hf.ClapTextModel(hf.ClapTextConfig(vocab_size=64, **SMALL)),
    "align": lambda: hf.AlignTextModel(hf.AlignTextConfig(vocab_size=64, **SMALL)),
    "git": lambda: hf.GitModel(
        hf.GitConfig(vocab_size=64, vision_config=dict(image_size=16, patch_size=4, **SMALL), **SMALL)
    ),
}  # fmt: skip


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", EAGER_ALONE)
def test_models_that_know_eager_alone(name, padded):
    """Their layers do not say whether they are causal, and parts of some add the mask themselves."""
    model = EAGER_ALONE[name]().eval()
    if not hasattr(inspect.getmodule(type(model)), "ALL_ATTENTION_FUNCTIONS"):
        pytest.skip(f"{name} of transformers {hf.__version__} does not go through AttentionInterface")
    for parameter in model.parameters():
        parameter.data.mul_(3)  # or attention is nearly even, and a mask changes little
    ids, mask = torch.randint(5, 60, (2, 12)), torch.ones(2, 12, dtype=torch.long)
    if padded:
        mask[1, 8:] = 0
    how = {"input_ids": ids, "attention_mask": mask} if padded else {"input_ids": ids}
    if model.config.is_encoder_decoder:
        how["decoder_input_ids"] = ids[:, :5]
    found = []
    for way in ("eager", "grilly"):
        model.set_attn_implementation(way)
        with torch.no_grad():
            found.append(model(**how)[0])
    if padded and not model.config.is_encoder_decoder:
        found = [states[mask.bool()] for states in found]
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", OTHER_WAYS)
def test_models_that_do_not_go_through_the_interface(name, tmp_path):
    """They are refused where they ask for a mask; where they make their own they compute what "eager" does."""
    model = OTHER_WAYS[name]()
    model.save_pretrained(tmp_path)
    eager, ours = (type(model).from_pretrained(tmp_path, attn_implementation=way).eval() for way in ("eager", "grilly"))
    ids, mask = torch.randint(3, 64, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    mask[0, 6:] = 0
    how = {"input_ids": ids, "attention_mask": mask}
    if "masking_utils" in inspect.getsource(inspect.getmodule(type(model))):
        with pytest.raises(
            NotImplementedError, match=rf"(?i){name} of transformers .*AttentionInterface; use .*='eager'"
        ):
            ours(**how)
    else:
        assert torch.equal(ours(**how).last_hidden_state, eager(**how).last_hidden_state)


def test_training_drops_weights():
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**{**DECODER, "num_hidden_layers": 1}, attention_dropout=0.5)).train()
    model.set_attn_implementation("grilly")
    ids = torch.randint(3, 64, (1, 9))
    torch.manual_seed(1)
    one, two = (model(input_ids=ids).logits for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(model(input_ids=ids).logits, one) and not torch.equal(one, two)
    assert torch.isfinite(one).all()


@pytest.mark.parametrize("name", [*DECODERS, *OTHERS])
def test_bfloat16(name):
    model = (DECODERS | OTHERS)[name]().eval().bfloat16()
    arguments, of = given(name)
    halves = {key: each.bfloat16() if each.is_floating_point() else each for key, each in arguments.items()}
    outs = {}
    for way in ("eager", "grilly"):
        choose(model, way)
        outs[way] = of(model(**halves)).float()
    exact = of(model.float()(**{key: each.float() if each.is_floating_point() else each
                                for key, each in halves.items()}))  # fmt: skip
    ours, theirs = ((outs[way] - exact).abs().max() for way in ("grilly", "eager"))
    assert ours <= 2 * theirs


def test_a_static_cache_is_longer_than_what_is_in_it():
    model = DECODERS["llama"]().eval()
    ids = torch.randint(3, 64, (1, 5))
    found = []
    for way in ("sdpa", "grilly"):
        model.set_attn_implementation(way)
        found.append(model.generate(input_ids=ids, max_new_tokens=5, do_sample=False, cache_implementation="static"))
    assert torch.equal(*found)


def test_what_it_does_not_do_it_refuses():
    q = torch.zeros(1, 2, 3, 8)
    module = torch.nn.Identity()
    chosen = {"indices": torch.zeros(1, 3, 2, dtype=torch.long)}
    for option, words in (({"output_attentions": True}, "never stores weights"), ({"cache": object()}, "take cache"),
                          (chosen, "take indices; use 'sdpa'")):  # fmt: skip
        with pytest.raises(NotImplementedError, match=words):
            grilly.transformers.attend(module, q, q, q, None, **option)


def test_the_block_of_the_page_runs_alone(capsys):
    page = Path(__file__).parents[1] / "docs/transformers.md"
    (block,) = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    exec(compile(block, page.name, "exec"), {})
    assert capsys.readouterr().out.startswith("torch.Size([1, ")
