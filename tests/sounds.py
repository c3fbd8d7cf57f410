"""A small Whisper with all files of its folder, and WAV files."""

import json
import wave

import goldens
from model_folders import write_folder, write_tokenizer

#: generation_config.json: what follows the first token, 3.
GENERATION = {
    "decoder_start_token_id": 3, "eos_token_id": 60, "pad_token_id": 0, "suppress_tokens": [5, 9],
    "begin_suppress_tokens": [7], "lang_to_id": {"<|en|>": 11, "<|de|>": 12},
    "task_to_id": {"transcribe": 13, "translate": 14}, "no_timestamps_token_id": 15,
    "forced_decoder_ids": [[1, None], [2, 13]],
}  # fmt: skip
#: preprocessor_config.json: pieces of one second.
FEATURES = {
    "chunk_length": 1, "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 10, "hop_length": 160,
    "n_fft": 400, "n_samples": 16000, "nb_max_frames": 100, "padding_side": "right", "padding_value": 0.0,
    "processor_class": "WhisperProcessor", "return_attention_mask": False, "sampling_rate": 16000,
}  # fmt: skip


def write_whisper(folder, generation=GENERATION, features=FEATURES):
    """The folder of the golden case "whisper", of 50 places of sound, and a tokenizer whose tokens are words."""
    import tokenizers

    given = goldens.cases("models")["whisper"].arguments
    config = {**given["config"], "max_source_positions": 50}
    shapes = {**given["tensors"], "model.encoder.embed_positions.weight": [50, 32]}
    write_folder(folder, {**given, "config": config, "tensors": shapes})
    words = {f"w{number}": number for number in range(61)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    made.decoder = tokenizers.decoders.Fuse()
    write_tokenizer(folder, made.to_str())
    (folder / "generation_config.json").write_text(json.dumps(generation))
    (folder / "preprocessor_config.json").write_text(json.dumps(features))
    return folder


def write_wav(file, numbers, width=2, rate=16000):
    """Whole numbers ``(N, channels)`` of ``width`` bytes."""
    with wave.open(str(file), "wb") as made:
        made.setparams((numbers.shape[1], width, rate, 0, "NONE", ""))
        numbers = numbers + 128 if width == 1 else numbers
        made.writeframes(b"".join(int(n).to_bytes(width, "little", signed=width > 1) for n in numbers.ravel()))
    return file
