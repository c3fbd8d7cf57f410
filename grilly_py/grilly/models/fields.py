"""Fields of config.json that change nothing of what is computed, and of tokenizer_config.json that ask for too much.

docs/models.md has the fields of a tokenizer's and of generation's files, and a test holds it."""

from __future__ import annotations

from typing import Any

#: Fields that say nothing of how outputs follow from inputs: of training, of texts, of programs that wrote the file,
#: and defaults of generation, some of which models look up.
WITHOUT_EFFECT = frozenset("""
    _attn_implementation _attn_implementation_autoset _commit_hash _flash_attn_2_enabled _name_or_path _num_labels
    architectures attention_dropout attention_probs_dropout_prob attn_implementation attn_pdrop auto_map bad_words_ids
    begin_suppress_tokens bos_token_id cache_implementation classifier_dropout classifier_dropout_prob
    cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dropout dropout_rate dtype
    early_stopping embd_pdrop encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_decoder_ids forced_eos_token_id gradient_checkpointing hidden_dropout hidden_dropout_prob
    id2label initializer_factor initializer_range is_llama_config keys_to_ignore_at_inference label2id language
    length_penalty max_length max_new_tokens max_seq_length max_sequence_length min_length mlm_probability
    model_max_length model_type neftune_noise_alpha no_repeat_ngram_size num_beam_groups num_beams num_labels
    num_return_sequences output_attentions output_hidden_states output_past output_scores pad_token_id prefix
    problem_type remove_invalid_values repetition_penalty resid_pdrop return_dict return_dict_in_generate
    sbert_ce_default_activation_function sentence_transformers sep_token_id suppress_tokens task_specific_params
    temperature tf_legacy_loss tokenizer_class tokenizer_model top_k top_p torch_dtype torchscript
    transformers.js_config transformers_version typical_p unk_token_id unsloth_fixed unsloth_version use_bfloat16
    use_cache use_flash_attention_2 use_return_dict vocab xla_device
""".split())  # fmt: skip
#: Fields that change nothing at one value, which transformers writes into files of any family: at others they would ask
#: for layers that are not there.
ONE_VALUE: dict[str, Any] = {
    "add_cross_attention": False, "chunk_size_feed_forward": 0, "is_decoder": False, "is_encoder_decoder": False,
    "pruned_heads": {}, "tie_encoder_decoder": False,
}  # fmt: skip
#: Fields of tokenizer_config.json that transformers reads as parts of a tokenizer: from a file they have no meaning.
TOKENIZER_REFUSED = (
    "_json_padding", "_json_truncation", "_spm_precompiled_charsmap", "fix_mistral_regex", "gguf_file", "init_inputs",
    "post_processor", "tokenizer_object", "tokenizer_padding", "tokenizer_truncation",
)  # fmt: skip
