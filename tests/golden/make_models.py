"""Writes tests/golden/models.npz: what transformers computes with small models of random weights.

    python tests/golden/make_models.py [encoders] [more_encoders] [decoders] [gemma3] [nomic] [more_decoders]
        [scaled] [translators] [pictures] [both] [sounds] [more_heads] [halves]

Needs torch and transformers; the tests do not. Each case has the config.json that transformers saves, the names and
shapes of the tensors that it saves, and a seed, of which the tests (model_folders.py) make the same weights. Seeds are
such that no greedy token is nearly a tie. The tests passed with a file made by transformers 5.0.0, the oldest 5.x, too.
"""

import importlib.util
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers as T
from safetensors import safe_open

# By its path: beside it lies a kernels.py, which transformers would take for a package of that name.
HELPERS = Path(__file__).parents[1] / "internals/helpers"
_spec = importlib.util.spec_from_file_location("model_folders", HELPERS / "model_folders.py")
model_folders = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(model_folders)

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
         "vocab_size": 61, "max_position_embeddings": 96}  # fmt: skip
LLAMA = {**SMALL, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
#: Which tokens are none, in a batch of three texts.
MASKS = {"left": [[1] * 9, [0] * 4 + [1] * 5, [0] * 7 + [1] * 2],
         "right": [[1] * 9, [1] * 5 + [0] * 4, [1] * 2 + [0] * 7]}  # fmt: skip
#: How near the two best tokens may be, in parts of the largest logit.
GAP = 2e-4

meta, arrays = {}, {}


def ids_of(seed, batch=3, length=9, rows=61):
    return np.random.RandomState(seed).randint(3, rows, (batch, length))


def case(name, make, config, run, tries=20, embeddings=1.0):
    """Try seeds until ``run(model)`` gives arrays, and keep them."""
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        make(config).save_pretrained(scratch)
        with safe_open(scratch / "model.safetensors", "np") as file:
            tensors = {key: file.get_slice(key).get_shape() for key in sorted(file.keys())}
        saved = json.loads((scratch / "config.json").read_text())
        for seed in range(tries):
            arguments = {"config": saved, "tensors": tensors, "seed": seed, "embeddings": embeddings}
            folder = model_folders.write_folder(scratch / str(seed), arguments)
            model = make.from_pretrained(folder, attn_implementation="eager")
            with torch.no_grad():
                found = run(model.eval())
            if found is not None:
                break
        else:
            raise SystemExit(f"{name}: no seed without near ties")
    meta[name] = arguments
    for key, value in found.items():
        value = np.asarray(value.detach()) if isinstance(value, torch.Tensor) else np.asarray(value)
        assert np.isfinite(value).all(), (name, key)
        value = value.astype({"f": np.float32, "i": np.int32}[value.dtype.kind])
        arrays[f"{name}/{key}"] = value
    print(f"{name}: seed {seed}, {sum(v.nbytes for k, v in arrays.items() if k.startswith(name + '/'))} bytes")


def greedy(model, count=64, **inputs):
    """Greedy tokens, or None where two logits were nearly equal."""
    out = model.generate(**inputs, do_sample=False, num_beams=1, max_new_tokens=count, return_dict_in_generate=True,
                         output_logits=True, pad_token_id=0)  # fmt: skip
    for logits in out.logits:
        best = logits.float().topk(2, dim=-1).values
        if (best[:, 0] - best[:, 1] < GAP * logits.float().abs().amax()).any():
            return None
    return out.sequences


def text(name, make, config, both=True, embeddings=1.0):
    """A language model: logits of padded batches, and 64 greedy tokens of a batch that is padded on the left."""

    def run(model):
        ids = ids_of(1)
        masks = {side: torch.tensor(mask) for side, mask in MASKS.items()}
        sent = torch.tensor(ids)
        tokens = greedy(model, input_ids=sent, attention_mask=masks["left"])
        if tokens is not None:
            print(f"  {name}: {len(set(tokens[0, 9:].tolist()))} different tokens in 64")
        if tokens is None or len(set(tokens[0, 9:].tolist())) < 8:  # a text that repeats itself would show little
            return None
        found = {"input_ids": ids, "tokens": tokens[:, 9:]}
        for side in ("left", "right") if both else ("left",):
            found[f"logits_{side}"] = model(input_ids=sent, attention_mask=masks[side]).logits
        return found

    case(name, make, config, run, embeddings=embeddings)


def encoders():
    def bert(model):
        ids, mask = ids_of(1), torch.tensor(MASKS["right"])
        types = np.random.RandomState(2).randint(0, 2, ids.shape)
        out = model(input_ids=torch.tensor(ids), attention_mask=mask, token_type_ids=torch.tensor(types))
        return {"input_ids": ids, "token_type_ids": types, "last_hidden_state": out.last_hidden_state,
                "pooler_output": out.pooler_output}  # fmt: skip

    def masked(model):
        ids = ids_of(1)
        out = model(torch.tensor(ids), attention_mask=torch.tensor(MASKS["left"]))
        return {"input_ids": ids, "logits_left": out.logits}

    def roberta(model):
        ids = np.where(np.array(MASKS["right"]) == 1, ids_of(1), 1)
        out = model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(MASKS["right"]))
        return {"input_ids": ids, "last_hidden_state": out.last_hidden_state}

    def classes(model):
        ids = np.where(np.array(MASKS["right"]) == 1, ids_of(1), 1)
        out = model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(MASKS["right"]))
        return {"input_ids": ids, "logits": out.logits}

    three = {"id2label": {0: "a", 1: "b", 2: "c"}}
    case("bert", T.BertModel, T.BertConfig(**SMALL), bert)
    case("bert_masked_lm", T.BertForMaskedLM, T.BertConfig(**SMALL, hidden_act="gelu_new"), masked)
    case("bert_texts", T.BertForSequenceClassification, T.BertConfig(**SMALL, id2label={0: "fits"}), classes)
    case("bert_tokens", T.BertForTokenClassification, T.BertConfig(**SMALL, **three), classes)
    case("roberta", T.RobertaModel, T.RobertaConfig(**SMALL, type_vocab_size=1), roberta)
    case("roberta_masked_lm", T.RobertaForMaskedLM, T.RobertaConfig(**SMALL, hidden_act="relu"), classes)
    case("roberta_texts", T.XLMRobertaForSequenceClassification, T.XLMRobertaConfig(**SMALL, **three), classes)
    case("roberta_tokens", T.RobertaForTokenClassification, T.RobertaConfig(**SMALL), classes)


def more_encoders():
    def states(model):
        ids = ids_of(1)
        out = model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(MASKS["right"]))
        return {"input_ids": ids, "last_hidden_state": out.last_hidden_state}

    def logits(model):
        ids = ids_of(1)
        out = model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(MASKS["right"]))
        return {"input_ids": ids, "logits": out.logits}

    def mpnet(model):
        ids = np.where(np.array(MASKS["right"]) == 1, ids_of(1), 1)
        ids, mask = np.tile(ids, 5), np.tile(MASKS["right"], 5)  # as long as distances that share a bucket
        ids[mask == 0] = 1
        out = model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask))
        return {"input_ids": ids, "attention_mask": mask, "last_hidden_state": out.last_hidden_state,
                "pooler_output": out.pooler_output}  # fmt: skip

    small = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": 61, "max_position_embeddings": 96}
    three = {"id2label": {0: "a", 1: "b", 2: "c"}}
    case("distilbert", T.DistilBertModel, T.DistilBertConfig(**small, activation="relu"), states)
    case("distilbert_masked_lm", T.DistilBertForMaskedLM, T.DistilBertConfig(**small), logits)
    case("distilbert_texts", T.DistilBertForSequenceClassification, T.DistilBertConfig(**small, **three), logits)
    case("distilbert_tokens", T.DistilBertForTokenClassification, T.DistilBertConfig(**small), logits)
    case("mpnet", T.MPNetModel, T.MPNetConfig(**SMALL), mpnet)


def decoders():
    text("gpt2", T.GPT2LMHeadModel, T.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=61, n_positions=80,
         bos_token_id=None, eos_token_id=None))  # fmt: skip
    llama3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
              "high_freq_factor": 4.0, "original_max_position_embeddings": 32}  # fmt: skip
    text("llama", T.LlamaForCausalLM, T.LlamaConfig(**LLAMA, rope_parameters=llama3))
    text("mistral", T.MistralForCausalLM, T.MistralConfig(**LLAMA, sliding_window=5), both=False)
    yarn = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 32}
    text("qwen2", T.Qwen2ForCausalLM, T.Qwen2Config(**LLAMA, use_sliding_window=True, max_window_layers=1,
         sliding_window=4, tie_word_embeddings=True, rope_parameters=yarn), both=False)  # fmt: skip
    linear = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}
    text("qwen3", T.Qwen3ForCausalLM, T.Qwen3Config(**LLAMA, head_dim=16, rope_parameters=linear), both=False)


    gemma = T.Gemma2Config(**LLAMA, head_dim=16, sliding_window=5, query_pre_attn_scalar=12,
                           attn_logit_softcapping=5.0, final_logit_softcapping=3.0)  # fmt: skip
    text("gemma2", T.Gemma2ForCausalLM, gemma, both=False, embeddings=0.15)


def nomic():
    def states(model):
        ids = ids_of(1)
        types = np.random.RandomState(2).randint(0, 2, ids.shape)
        out = model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(MASKS["right"]),
                    token_type_ids=torch.tensor(types))  # fmt: skip
        return {"input_ids": ids, "token_type_ids": types, "last_hidden_state": out.last_hidden_state}

    case("nomic_bert", T.NomicBertModel, T.NomicBertConfig(**SMALL), states)


def gemma3():
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    angles = {"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
              "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}  # fmt: skip
    config = T.Gemma3TextConfig(**{**LLAMA, "num_hidden_layers": 3}, head_dim=16, sliding_window=5, layer_types=kinds,
                                query_pre_attn_scalar=12, rope_parameters=angles)  # fmt: skip
    text("gemma3", T.Gemma3ForCausalLM, config, both=False, embeddings=0.15)


def more_decoders():
    phi = {**LLAMA, "sliding_window": 6, "rms_norm_eps": 1e-5}
    text("phi3", T.Phi3ForCausalLM, T.Phi3Config(**phi, original_max_position_embeddings=96), both=False)
    part = {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75, "factor": 3.0,
            "original_max_position_embeddings": 80, "short_factor": [1.0, 1.2, 1.5],
            "long_factor": [1.0, 2.0, 4.0]}  # fmt: skip
    phi = {**LLAMA, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "original_max_position_embeddings": 80}
    text("phi3_partial", T.Phi3ForCausalLM, T.Phi3Config(**phi, rope_parameters=part), both=False, embeddings=0.15)
    gemma = T.GemmaConfig(**LLAMA, head_dim=16, hidden_act="gelu")
    text("gemma", T.GemmaForCausalLM, gemma, both=False, embeddings=0.15)


def scaled():
    """Rotary positions of which the angles depend on the length of the text, up to the trained length."""
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0}
    text("dynamic", T.LlamaForCausalLM, T.LlamaConfig(**LLAMA, rope_parameters=dynamic), both=False)
    longrope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 80,
                "short_factor": [1.0, 1.2, 1.5, 2.0], "long_factor": [1.0, 2.0, 4.0, 8.0]}  # fmt: skip
    text("longrope", T.LlamaForCausalLM, T.LlamaConfig(**LLAMA, rope_parameters=longrope), both=False)


def more_heads():
    def run(*names):
        def found(model):
            ids = np.where(np.array(MASKS["right"]) == 1, ids_of(1), 1)
            out = model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(MASKS["right"]))
            return {"input_ids": ids} | {name: out[name] for name in names}
        return found

    small = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": 61, "max_position_embeddings": 96}
    places = run("start_logits", "end_logits")
    both = run("prediction_logits", "seq_relationship_logits")
    case("bert_pretraining", T.BertForPreTraining, T.BertConfig(**SMALL), both)
    case("bert_answers", T.BertForQuestionAnswering, T.BertConfig(**SMALL), places)
    case("roberta_answers", T.XLMRobertaForQuestionAnswering, T.XLMRobertaConfig(**SMALL), places)
    case("distilbert_answers", T.DistilBertForQuestionAnswering, T.DistilBertConfig(**small), places)
    text("gpt2_untied", T.GPT2LMHeadModel, T.GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=61, n_positions=80,
         bos_token_id=None, eos_token_id=None, tie_word_embeddings=False), both=False)  # fmt: skip
    read = T.T5Config(d_model=32, d_kv=12, d_ff=48, num_layers=2, num_heads=4, vocab_size=61,
                      feed_forward_proj="gated-gelu")  # fmt: skip
    case("t5_encoder", T.T5EncoderModel, read, run("last_hidden_state"), embeddings=0.3)


def answer(name, make, config, inputs):
    """An encoder with a decoder: logits of padded batches, and 64 greedy tokens; ``inputs`` are the encoder's."""

    def run(model):
        answers = ids_of(2, length=7)
        sent = {key: torch.tensor(value) for key, value in inputs.items()}
        tokens = greedy(model, **sent)
        if tokens is not None:
            print(f"  {name}: {len(set(tokens[0].tolist()))} different tokens in 64")
        if tokens is None or len(set(tokens[0].tolist())) < 6:
            return None
        out = model(**sent, decoder_input_ids=torch.tensor(answers))
        return {**inputs, "decoder_input_ids": answers, "tokens": tokens, "logits": out.logits}

    case(name, make, config, run, embeddings=0.3)


def translators():
    read = {"input_ids": ids_of(1), "attention_mask": np.array(MASKS["right"])}
    small = {"d_model": 32, "d_kv": 12, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 61,
             "decoder_start_token_id": 0, "eos_token_id": None, "relative_attention_num_buckets": 12,
             "relative_attention_max_distance": 30}  # fmt: skip
    answer("t5", T.T5ForConditionalGeneration, T.T5Config(**small), read)
    gated = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 1}
    answer("t5_gated", T.T5ForConditionalGeneration, T.T5Config(**small, **gated), read)


def pictures():
    small = {name: SMALL[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads",
                                            "intermediate_size")}  # fmt: skip
    pixels = (np.random.RandomState(3).random_sample((2, 3, 19, 19)) * 4 - 2).astype(np.float32)

    def vit(model):
        out = model(torch.tensor(pixels), output_hidden_states=True)
        return {"pixel_values": pixels, "logits": out.logits}

    def pooled(model):
        out = model(torch.tensor(pixels))
        return {"pixel_values": pixels, "last_hidden_state": out.last_hidden_state, "pooler_output": out.pooler_output}

    case("vit", T.ViTForImageClassification, T.ViTConfig(**small, image_size=19, patch_size=6, num_labels=5), vit)
    case("vit_pooled", T.ViTModel, T.ViTConfig(**small, image_size=19, patch_size=6), pooled)


def both():
    small = {name: SMALL[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads",
                                            "intermediate_size")}  # fmt: skip
    pixels = (np.random.RandomState(3).random_sample((2, 3, 12, 12)) * 4 - 2).astype(np.float32)
    ids = np.minimum(ids_of(1), 58)
    for row, end in enumerate((8, 4, 6)):  # where texts end; what follows is padding
        ids[row, end:] = 60
    mask = np.array([[1] * 9, [1] * 5 + [0] * 4, [1] * 7 + [0] * 2])

    def clip(model):
        out = model(input_ids=torch.tensor(ids), pixel_values=torch.tensor(pixels), attention_mask=torch.tensor(mask))
        return {"input_ids": ids, "pixel_values": pixels, "attention_mask": mask, "text_embeds": out.text_embeds,
                "image_embeds": out.image_embeds, "logits_per_image": out.logits_per_image}  # fmt: skip

    for name, end in (("clip", 60), ("clip_old", 2)):
        texts = {**small, "vocab_size": 61, "max_position_embeddings": 20, "eos_token_id": end}
        views = {**small, "image_size": 12, "patch_size": 4}
        case(name, T.CLIPModel, T.CLIPConfig(text_config=texts, vision_config=views, projection_dim=24), clip)


def sounds():
    heads = {f"{part}_{what}": n for part in ("encoder", "decoder")
             for what, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))}  # fmt: skip
    config = T.WhisperConfig(**heads, d_model=32, vocab_size=61, num_mel_bins=10, max_source_positions=20,
                             max_target_positions=80, pad_token_id=0, bos_token_id=None, eos_token_id=None,
                             decoder_start_token_id=3, suppress_tokens=[5, 9], begin_suppress_tokens=[7])  # fmt: skip
    features = (np.random.RandomState(4).random_sample((2, 10, 40)) * 2 - 1).astype(np.float32)

    def run(model):
        sent, answers = torch.tensor(features), ids_of(2, batch=2, length=7)
        written = torch.tensor([[3, 11], [3, 12]])
        for i in range(64):  # transformers' own generate follows the tasks of Whisper's tokenizer
            logits = model(sent, decoder_input_ids=written).logits[:, -1]
            logits[:, [5, 9] + ([7] if i == 0 else [])] = -torch.inf
            best = logits.topk(2, dim=-1).values
            if (best[:, 0] - best[:, 1] < GAP * best[:, 0].abs()).any():
                return None
            written = torch.cat([written, logits.argmax(-1, keepdim=True)], 1)
        print(f"  whisper: {len(set(written[0].tolist()))} different tokens in 64")
        if len(set(written[0].tolist())) < 8:
            return None
        out = model(sent, decoder_input_ids=torch.tensor(answers))
        return {"input_features": features, "decoder_input_ids": answers, "tokens": written, "logits": out.logits}

    case("whisper", T.WhisperForConditionalGeneration, config, run, embeddings=0.3)


#: What is compared in 16 bits: the case, its class, what it computes, and the side of its padding.
HALVES = (
    ("bert", T.BertModel, "last_hidden_state", "right"), ("llama", T.LlamaForCausalLM, "logits", "left"),
    ("distilbert", T.DistilBertModel, "last_hidden_state", "right"), ("mpnet", T.MPNetModel, "last_hidden_state", None),
    ("gpt2", T.GPT2LMHeadModel, "logits", "left"), ("gemma2", T.Gemma2ForCausalLM, "logits", "left"),
    ("phi3", T.Phi3ForCausalLM, "logits", "left"), ("gemma", T.GemmaForCausalLM, "logits", "left"),
    ("t5_gated", T.T5ForConditionalGeneration, "logits", None),
    ("whisper", T.WhisperForConditionalGeneration, "logits", None),
)  # fmt: skip


def halves():
    """How far transformers itself is from float32 in 16 bits, at most: added to cases that are there."""
    for name, make, output, side in HALVES:
        names = ("input_ids", "token_type_ids", "attention_mask", "pixel_values", "input_features", "decoder_input_ids")
        sent = {n: torch.tensor(arrays[f"{name}/{n}"]) for n in names if f"{name}/{n}" in arrays}
        sent = {n: value.long() if value.dtype == torch.int32 else value for n, value in sent.items()}
        if side:
            sent["attention_mask"] = torch.tensor(MASKS[side])
        kept = np.array(MASKS[side]) != 0 if side else ...
        found = {}
        with tempfile.TemporaryDirectory() as scratch:
            folder = model_folders.write_folder(Path(scratch), meta[name])
            for dtype in ("float32", "float16", "bfloat16"):
                made = make.from_pretrained(folder, attn_implementation="eager", dtype=dtype).eval()
                own = {n: value.to(made.dtype) if value.is_floating_point() else value for n, value in sent.items()}
                with torch.no_grad():
                    found[dtype] = made(**own)[output].float().numpy()[kept]
        for dtype in ("float16", "bfloat16"):
            error = np.abs(found[dtype] - found["float32"]).max()
            arrays[f"{name}/{dtype}_error"] = np.asarray(error, np.float32)
            print(f"{name}: {dtype} is {error / np.abs(found['float32']).max():.1e} of the largest off")


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    makers = (encoders, more_encoders, decoders, gemma3, nomic, more_decoders, scaled, translators, pictures, both,
              sounds, more_heads, halves)  # fmt: skip
    made = {make.__name__: make for make in makers}
    file = Path(__file__).parent / "models.npz"
    if sys.argv[1:]:  # the others are kept
        with np.load(file) as kept:
            meta |= json.loads(str(kept["meta"]))["cases"]
            arrays |= {name: kept[name] for name in kept.files if name != "meta"}
    for name in sys.argv[1:] or made:
        made[name]()
    versions = {"torch": torch.__version__, "transformers": T.__version__}
    np.savez_compressed(file, meta=np.array(json.dumps({**versions, "cases": meta})), **arrays)
    print(f"{file.name}: {len(meta)} cases, {file.stat().st_size / 1024:.0f} KiB")
