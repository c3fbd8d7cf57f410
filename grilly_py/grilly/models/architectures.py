"""Which class a folder's config.json asks for."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ModelError
from .config import Config, family_of, place_of
from .model import Model
from .weights import Weights

Make = Callable[[Config, Weights], Model]

#: What config.json calls an architecture, to the file of this folder and the class in it.
ARCHITECTURES = {
    "BertModel": "bert.Bert",
    "BertForPreTraining": "bert_heads.BertPretraining",
    "BertForMaskedLM": "bert_heads.BertMaskedLM",
    "BertForSequenceClassification": "bert_heads.BertClassifier",
    "BertForTokenClassification": "bert_heads.BertTokenClassifier",
    "BertForQuestionAnswering": "bert_heads.BertQuestionAnswering",
    "RobertaModel": "bert.Roberta",
    "RobertaForMaskedLM": "bert_heads.RobertaMaskedLM",
    "RobertaForSequenceClassification": "bert_heads.RobertaClassifier",
    "RobertaForTokenClassification": "bert_heads.RobertaTokenClassifier",
    "RobertaForQuestionAnswering": "bert_heads.RobertaQuestionAnswering",
    "XLMRobertaModel": "bert.Roberta",
    "XLMRobertaForMaskedLM": "bert_heads.RobertaMaskedLM",
    "XLMRobertaForSequenceClassification": "bert_heads.RobertaClassifier",
    "XLMRobertaForTokenClassification": "bert_heads.RobertaTokenClassifier",
    "XLMRobertaForQuestionAnswering": "bert_heads.RobertaQuestionAnswering",
    "DistilBertModel": "distilbert.DistilBert",
    "DistilBertForMaskedLM": "distilbert.DistilBertMaskedLM",
    "DistilBertForSequenceClassification": "distilbert.DistilBertClassifier",
    "DistilBertForTokenClassification": "distilbert.DistilBertTokenClassifier",
    "DistilBertForQuestionAnswering": "distilbert.DistilBertQuestionAnswering",
    "MPNetModel": "mpnet.MPNet",
    "NomicBertModel": "nomic.NomicBert",
    "GPT2Model": "gpt2.GPT2",
    "GPT2LMHeadModel": "gpt2.GPT2LM",
    "LlamaModel": "llama.Llama",
    "LlamaForCausalLM": "llama.LlamaLM",
    "MistralModel": "llama.Llama",
    "MistralForCausalLM": "llama.LlamaLM",
    "Qwen2Model": "llama.Llama",
    "Qwen2ForCausalLM": "llama.LlamaLM",
    "Qwen3Model": "llama.Llama",
    "Qwen3ForCausalLM": "llama.LlamaLM",
    "Phi3Model": "llama.Llama",
    "Phi3ForCausalLM": "llama.LlamaLM",
    "GemmaModel": "gemma.Gemma1",
    "GemmaForCausalLM": "gemma.Gemma1LM",
    "Gemma2Model": "gemma.Gemma",
    "Gemma2ForCausalLM": "gemma.GemmaLM",
    "Gemma3TextModel": "gemma.Gemma3",
    "Gemma3ForCausalLM": "gemma.Gemma3LM",
    "T5EncoderModel": "t5.T5Encoder",
    "T5Model": "t5.T5",
    "T5ForConditionalGeneration": "t5.T5LM",
    "CLIPModel": "clip.CLIP",
    "CLIPTextModel": "clip_parts.CLIPText",
    "CLIPTextModelWithProjection": "clip_parts.CLIPTextFeatures",
    "CLIPVisionModel": "clip_parts.CLIPPicture",
    "CLIPVisionModelWithProjection": "clip_parts.CLIPPictureFeatures",
    "WhisperModel": "whisper.WhisperStates",
    "WhisperForConditionalGeneration": "whisper.Whisper",
    "ViTModel": "vit.ViT",
    "ViTForImageClassification": "vit.ViTClassifier",
}
#: Encoders of sentences by model_type without its signs, to the same of the models without a head.
ENCODERS = {
    "bert": "bert.Bert", "roberta": "bert.Roberta", "xlmroberta": "bert.Roberta", "distilbert": "distilbert.DistilBert",
    "mpnet": "mpnet.MPNet", "nomicbert": "nomic.NomicBert",
}  # fmt: skip
#: How names of tensors begin that are of heads of these.
HEADS = (
    "classifier.", "cls.", "lm_head.", "pooler.", "pre_classifier.", "qa_outputs.", "vocab_layer_norm.",
    "vocab_projector.", "vocab_transform.",
)  # fmt: skip


def class_of(folder: Path, fields: dict[str, Any]) -> Make:
    """The class for what config.json calls the architecture. Where it lacks a ``model_type``, the fields get one."""
    where, names = place_of(folder), fields.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ModelError(f"{where}: architectures is {name!r}; expected one of {', '.join(sorted(ARCHITECTURES))}")
    fields["model_type"] = family_of(where, fields, name)
    return _found(ARCHITECTURES[name])


def encoder_of(folder: Path, fields: dict[str, Any]) -> Make:
    """The class of an encoder of sentences, without the head that ``architectures`` may name.

    It is chosen by ``model_type``, as by transformers' AutoModel, with which sentence-transformers loads: files of the
    bare model often name the one with a head that it was trained with. Where they have the head, it is passed over.
    """
    where, kind = place_of(folder), fields.get("model_type")
    if kind is None:  # in old files the architecture tells
        names = fields.get("architectures")
        kind = family_of(where, fields, str(names[0] if isinstance(names, list) and names else names))
    name = re.sub("[-_]", "", str(kind)).lower()
    if name not in ENCODERS:
        raise ModelError(f"{where}: model_type is {kind!r}; sentences are encoded by BERT, RoBERTa, XLM-RoBERTa, "
                         "DistilBERT, MPNet and Nomic BERT")  # fmt: skip
    found = _found(ENCODERS[name])

    def make(config: Config, weights: Weights) -> Model:
        weights.allow_below(*HEADS)
        return found(config, weights)

    return make


def _found(place: str) -> Make:
    """The class in a file of this folder."""
    file, name = place.split(".")
    found: Make = getattr(importlib.import_module(f".{file}", __package__), name)
    return found
