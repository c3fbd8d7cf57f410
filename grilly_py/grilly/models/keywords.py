"""Keyword arguments of transformers' models, and what to give here instead."""

from __future__ import annotations

#: Of ``generate`` and ``stream``.
GENERATION = {
    "max_length": "max_new_tokens, less the prompt's tokens",
    "num_beams": "nothing: each text has one candidate",
    "use_cache": "nothing: there always is a cache",
    "streamer": "nothing; model.stream gives token after token",
    "num_return_sequences": "input_ids with each prompt as often as it is to be continued",
    "generation_config": "the arguments themselves",
    "inputs": "input_ids",
    "inputs_embeds": "input_ids",
    "position_ids": "attention_mask, by which positions are counted",
    "past_key_values": "the whole text as input_ids; model(input_ids, past_key_values=cache) goes on with one",
    "suppress_tokens": "nothing; set model.suppress_tokens",
    "begin_suppress_tokens": "nothing; set model.begin_suppress_tokens",
    "min_length": "nothing: there is no least length",
    "min_new_tokens": "nothing: there is no least length",
    "min_p": "top_p",
    "typical_p": "top_p",
    "logits_processor": "nothing; a loop of your own has model(input_ids, past_key_values=cache).logits",
    "stopping_criteria": "stop_strings or eos_token_id, or a loop over model.stream",
    "max_time": "a loop over model.stream, which may be left at any token",
    "bad_words_ids": "nothing: no words are kept out",
    "no_repeat_ngram_size": "repetition_penalty",
    "forced_bos_token_id": "decoder_input_ids with that token at the end, where the model has a decoder of its own",
    "return_dict_in_generate": "nothing: the tokens alone come back",
    "output_scores": "nothing; model(input_ids).logits has them",
    "output_logits": "nothing; model(input_ids).logits has them",
    "assistant_model": "nothing: there is no assisted generation",
    "length_penalty": "nothing: each text has one candidate",
    "language": "it to transcribe() of a grilly.models.Transcriber, which knows the tokens of languages",
    "task": "it to transcribe() of a grilly.models.Transcriber, which knows the tokens of tasks",
    "return_timestamps": "nothing: texts of sounds have no times",
    **dict.fromkeys(("forced_decoder_ids", "prompt_ids"), "decoder_input_ids, what answers begin with"),
}
#: Of calls of models. Where a model has the argument itself, this is not looked at.
CALLS = {
    "output_hidden_states": "nothing: the states after the last layer alone come back",
    "output_attentions": "nothing: the weights of attention are never stored",
    "return_dict": "nothing: results always have names",
    "use_cache": "past_key_values=model.make_cache(batch, max_len), where the model continues texts",
    "past_key_values": "nothing: calls of this model keep none; where it writes texts, generate has a cache of its own",
    "cache_position": "past_key_values alone: the cache says how many tokens it has",
    "encoder_outputs": "what the encoder reads: it runs at each call",
    "labels": "nothing: grilly.functional.cross_entropy makes a loss of logits and labels",
    "return_loss": "nothing: grilly.functional.cross_entropy makes a loss of logits",
    "inputs_embeds": "input_ids",
    "decoder_inputs_embeds": "decoder_input_ids",
    "position_ids": "nothing: positions are 0, 1, 2, ...",
    "token_type_ids": "nothing: this model has one type of tokens",
    "interpolate_pos_encoding": "nothing: pictures are of the configuration's image_size",
    **dict.fromkeys(("head_mask", "decoder_head_mask", "cross_attn_head_mask"), "nothing: all heads take part"),
    **dict.fromkeys(("logits_to_keep", "num_logits_to_keep"), "nothing: logits are computed when they are asked for"),
}
#: Of ``apply_chat_template``, which takes any other keyword for a variable of the template.
CHATS = {
    "continue_final_message": "the messages before it, add_generation_prompt=True, and its text after what comes back",
    "tokenize": "nothing: a text comes back, of which encode([text], add_special_tokens=False) makes tokens",
    **dict.fromkeys(
        ("return_tensors", "return_dict", "padding", "tokenizer_kwargs"),
        "nothing: a text comes back, of which encode([text], add_special_tokens=False) makes arrays, padded",
    ),
    **dict.fromkeys(("truncation", "max_length"), "nothing; Tokenizer.cut(longest) has encode cut texts"),
    "return_assistant_tokens_mask": "nothing: which tokens are an answer's is not told",
    "sanitize_control_tokens": "nothing: names of special tokens in messages become these tokens",
}


__all__ = ["CALLS", "CHATS", "GENERATION"]
