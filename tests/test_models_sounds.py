"""Sound to features and to text: log_mel against transformers, Transcriber and the command transcribe."""

import importlib.util
import json
import sys
import warnings

import numpy as np
import pytest

import goldens
from grilly import ModelError, models
from grilly.cli import main
from model_folders import change
from sounds import FEATURES as PREPROCESSOR
from sounds import GENERATION, write_wav, write_whisper

FEATURES = goldens.cases("log_mel")


@pytest.mark.parametrize("name", FEATURES)
def test_log_mel(name):
    case = FEATURES[name]
    bins, keep = case.arguments["bins"], case.arguments["keep"]
    found = models.log_mel(case.samples / 32768, bins, n_samples=case.arguments["n_samples"])
    assert found.shape == (bins, case.arguments["frames"]) and found.dtype == np.float32
    # Both compute in float64; transformers keeps the transform in complex64, so powers are 2**-22 off.
    np.testing.assert_allclose(found[:, ::keep], case.features, atol=2e-6)


def test_log_mel_of_what_is_no_sound():
    with pytest.raises(TypeError, match="int16; expected floats"):
        models.log_mel(np.zeros(400, np.int16))
    with pytest.raises(ValueError, match=r"shape \(2, 400\); expected \(N,\)"):
        models.log_mel(np.zeros((2, 400)))
    with pytest.raises(ValueError, match="not all finite"):
        models.log_mel(np.full(400, np.nan))
    with pytest.raises(ValueError, match="200 samples; expected at least 201"):
        models.log_mel(np.zeros(200))
    assert models.log_mel(np.zeros(0), n_samples=1600).shape == (80, 10)


SOUND = FEATURES["cut"].samples[:12000].astype(np.float32) / 32768
LONG = np.concatenate([SOUND, SOUND[::-1], SOUND])  # 2.25 s, so three pieces
needs_tokenizers = pytest.mark.skipif(
    importlib.util.find_spec("tokenizers") is None, reason="not installed: tokenizers"
)


@pytest.fixture(scope="module")
def whisper_folder(tmp_path_factory):
    return write_whisper(tmp_path_factory.mktemp("sounds") / "whisper")


@pytest.fixture(scope="module")
def transcriber(whisper_folder, vulkan_backend):
    return models.Transcriber.load(whisper_folder, backend=vulkan_backend)


def by_hand(transcriber, sound, begun, **options):
    """The text of pieces of a second, each by the model's own generate after the tokens ``begun``."""
    found = []
    for start in range(0, len(sound), 16000):
        features = models.log_mel(sound[start : start + 16000], 10, n_samples=16000)[None]
        given = {"max_new_tokens": 80 - len(begun), **options}
        tokens = transcriber.model.generate(features, decoder_input_ids=np.array([begun]), **given)[0]
        found += [f"w{token}" for token in tokens[len(begun) :]]
    return "".join(found)


@needs_tokenizers
def test_transcriber(transcriber):
    text = transcriber.transcribe(LONG, 16000, language="de", task="translate", max_new_tokens=6)
    assert text == by_hand(transcriber, LONG, [3, 12, 14, 15], max_new_tokens=6)
    parts = list(transcriber.stream(LONG, 16000, language="de", task="translate", max_new_tokens=6))
    assert "".join(parts) == text and sum(map(bool, parts)) > 6, "text comes in parts"
    other = transcriber.transcribe(SOUND, 16000, language="en")
    assert other == by_hand(transcriber, SOUND, [3, 11, 13, 15]), "as many tokens as there are positions"
    assert other != transcriber.transcribe(SOUND, 16000, language="de")
    for named in ("English", "english", "<|en|>"):
        assert transcriber.transcribe(SOUND, 16000, language=named) == other


@needs_tokenizers
@pytest.mark.needs("soxr")
def test_sounds_of_other_rates(transcriber, monkeypatch):
    import soxr

    fast, options = np.repeat(SOUND, 3).astype(np.float16), {"language": "en", "max_new_tokens": 8}
    wanted = transcriber.transcribe(soxr.resample(fast.astype(np.float32), 48000, 16000), 16000, **options)
    assert transcriber.transcribe(fast, 48000, **options) == wanted != transcriber.transcribe(fast, 16000, **options)
    monkeypatch.setitem(sys.modules, "soxr", None)
    why = r"Transcriber: the sound has 48000 samples a second and 16000 are wanted, .*; run: pip install"
    with pytest.raises(ImportError, match=why):
        transcriber.stream(fast, 48000)


@needs_tokenizers
@pytest.mark.parametrize("options, words", [
    ({"beam_size": 5}, "beam_size"), ({"decoder_input_ids": [[3]]}, "follow from language and task"),
])  # fmt: skip
def test_options_are_checked_before_any_work(transcriber, options, words):
    with pytest.raises(TypeError, match=words):
        transcriber.stream(SOUND, 16000, **options)


@needs_tokenizers
def test_the_language_is_found(transcriber, monkeypatch):
    features = models.log_mel(SOUND, 10, n_samples=16000)[None]
    logits = transcriber.model(features, np.array([[3]])).logits[0, 0]
    best = ["en", "de"][int(logits[12] > logits[11])]
    assert transcriber.detect_language(SOUND) == best
    begun = [3, transcriber.languages[best], 13, 15]
    wanted = by_hand(transcriber, SOUND, begun, max_new_tokens=4)
    assert transcriber.transcribe(SOUND, 16000, max_new_tokens=4) == wanted
    top, low = int(logits.argmax()), int(logits.argmin())
    monkeypatch.setattr(transcriber, "languages", {"low": low, "top": top})
    assert transcriber.detect_language(SOUND) == "top"


@needs_tokenizers
@pytest.mark.parametrize("said, given, begun", [
    ({"language": "de", "task": "translate"}, {}, [3, 12, 14, 15]),
    ({"language": "german"}, {}, [3, 12, 13, 15]),
    ({"language": "<|de|>", "task": "translate"}, {"language": "en"}, [3, 11, 14, 15]),
    ({"language": "de", "task": "translate"}, {"task": "transcribe"}, [3, 12, 13, 15]),
    ({"task": "translate"}, {}, [3, "found", 14, 15]),
    ({"forced_decoder_ids": [[1, 12], [2, 14], [3, 15]]}, {}, [3, 12, 14, 15]),
    ({"forced_decoder_ids": [[1, None], [2, 14]]}, {}, [3, "found", 14, 15]),
    ({"forced_decoder_ids": [[1, 12], [2, 14]]}, {"language": "en"}, [3, 11, 13, 15]),
    ({"forced_decoder_ids": [[1, 12], [2, 14]], "language": "en"}, {}, [3, 11, 13, 15]),
    ({"config.json": [[1, 12], [2, 14]]}, {}, [3, 12, 14, 15]),
])  # fmt: skip
def test_the_folder_chooses_language_and_task(vulkan_backend, tmp_path, said, given, begun):
    """transformers begins so, with these files and arguments."""
    generation = {name: value for name, value in GENERATION.items() if name != "forced_decoder_ids"}
    made = write_whisper(tmp_path / "whisper", {**generation, **said})
    change(made, forced_decoder_ids=said.get("config.json", ...))
    one = models.Transcriber.load(made, backend=vulkan_backend)
    begun = [one.languages[one.detect_language(SOUND)] if token == "found" else token for token in begun]
    seen, stream = [], one.model.stream
    one.model.__dict__["stream"] = lambda *args, **more: seen.append(more["decoder_input_ids"]) or stream(*args, **more)
    one.transcribe(LONG, 16000, max_new_tokens=2, **given)
    assert [ids.tolist() for ids in seen] == [[begun]] * 3


@needs_tokenizers
def test_what_the_folder_asks_for_in_vain(vulkan_backend, tmp_path, capsys):
    """Times are none of it: a Transcriber promises text without them."""
    made = write_whisper(tmp_path / "whisper", {**GENERATION, "return_timestamps": True, "num_beams": 5})
    file = write_wav(tmp_path / "a.wav", np.round(SOUND * 32768).astype(int)[:, None])
    one = models.Transcriber.load(made, backend=vulkan_backend)
    with pytest.warns(UserWarning, match="Whisper.generate: the folder asks for num_beams=5, which") as warned:
        one.transcribe(SOUND, 16000, max_new_tokens=1)
    whisper = models.load(made, backend=vulkan_backend)
    features, said = one.features(SOUND), "the folder asks for num_beams=5, return_timestamps=True, which"
    for call in (whisper.generate, whisper.stream):
        with pytest.warns(UserWarning, match=said) as more:
            call(features, max_new_tokens=1)
        warned = [*warned, *more]
    assert [one.filename for one in warned] == [__file__] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options = ["--max-new-tokens", "1", "--device", str(vulkan_backend.device.index)]
        assert main(["transcribe", str(made), str(file), *options]) == 0
    error = capsys.readouterr().err
    assert error.startswith("grilly transcribe: the folder asks for num_beams=5, which is not applied here\n0.8 s of")


@needs_tokenizers
def test_what_cannot_be_transcribed(transcriber):
    for options, why in (
        ({"sampling_rate": 0}, "sampling_rate is 0; expected a number above 0"),
        ({"samples": np.where(np.arange(36000) < 35999, LONG, np.nan)}, "Transcriber: samples are not all finite"),
        ({"language": "xx"}, "language is 'xx'; expected one of de, en"),
        ({"language": "French"}, "language is 'French'; expected one of de, en"),
        ({"language": 3}, "language is 3; expected one of de, en"),
        ({"task": "sing"}, "task is 'sing'; expected one of transcribe, translate"),
        ({"samples": LONG[None]}, r"float32 \(1, 36000\); expected floats \(N,\)"),
        ({"samples": LONG[:0]}, r"Transcriber: the sound is empty: samples have shape \(0,\); expected at least one"),
        ({"max_new_tokens": 99}, "positions"),
    ):
        with pytest.raises(ValueError, match=why):
            transcriber.transcribe(**{"samples": LONG, "sampling_rate": 16000, **options})
    with pytest.raises(ValueError, match="the sound is empty"):  # and not in the language of silence
        transcriber.detect_language([])


@needs_tokenizers
def test_models_of_one_language(vulkan_backend, tmp_path):
    generation = {key: value for key, value in GENERATION.items() if key not in ("lang_to_id", "task_to_id")}
    made = write_whisper(tmp_path / "english", {**generation, "forced_decoder_ids": [[1, 15]]})
    (made / "preprocessor_config.json").rename(made / "processor_config.json")
    (made / "processor_config.json").write_text(json.dumps({"feature_extractor": PREPROCESSOR}))
    english = models.Transcriber.load(made, backend=vulkan_backend)
    text = english.transcribe(SOUND, 16000, max_new_tokens=4)
    assert text == by_hand(english, SOUND, [3, 15], max_new_tokens=4)
    with pytest.raises(ValueError, match="names no languages, and none can be chosen"):
        english.transcribe(SOUND, 16000, language="en")
    with pytest.raises(ValueError, match="names no languages"):
        english.detect_language(SOUND)


@needs_tokenizers
@pytest.mark.parametrize("generation, features, why", [
    ({}, {"feature_size": 80}, r"preprocessor_config.json: features are \(80, 100\); the model takes \(10, 100\)"),
    ({}, {"chunk_length": 30}, r"features are \(10, 3000\)"),
    ({}, {"dither": 0.1}, "dither is 0.1; expected 0"),
    ({}, {"loudness": 3}, "not known: loudness"),
    ({"lang_to_id": {"<|en|>": 61}}, {}, "lang_to_id .*expected tokens from 0 to 60"),
    ({"task_to_id": {"translate": 14}}, {}, "task_to_id .*transcribe among them"),
    ({"lang_to_id": None, "forced_decoder_ids": [[1, None]]}, {}, "forced_decoder_ids .*expected tokens from 0 to 60"),
    ({"lang_to_id": None, "forced_decoder_ids": [[2, 13]]}, {}, "pairs of a place, from 1 on"),
    ({"language": "fr"}, {}, "language is 'fr'; expected one of de, en"),
    ({"language": ["de"]}, {}, r"language is \['de'\]; expected one of de, en"),
    ({"task": "sing"}, {}, "task is 'sing'; expected one of transcribe, translate"),
    ({"lang_to_id": None, "language": "german"}, {}, "language is 'german'; expected one of en$"),
])  # fmt: skip
def test_folders_that_do_not_fit(vulkan_backend, tmp_path, generation, features, why):
    made = write_whisper(tmp_path / "whisper", {**GENERATION, **generation}, {**PREPROCESSOR, **features})
    with pytest.raises(ModelError, match=why):
        models.Transcriber.load(made, backend=vulkan_backend)


@needs_tokenizers
def test_folders_of_other_models(vulkan_backend, whisper_folder, tmp_path):
    with pytest.raises(ModelError, match=r"architectures is None; sounds are transcribed by Whisper"):
        (tmp_path / "config.json").write_text("{}")
        models.Transcriber.load(tmp_path, backend=vulkan_backend)
    made = write_whisper(tmp_path / "whisper")
    (made / "preprocessor_config.json").unlink()
    with pytest.raises(ModelError, match="preprocessor_config.json is missing"):
        models.Transcriber.load(made, backend=vulkan_backend)
