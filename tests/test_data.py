"""Batches of tokens, samples packed into rows, and what is learned of texts and chats."""

import json

import numpy as np
import pytest

import grilly
from grilly import data, models
from model_folders import write_tokenizer


def arrays(batch):
    return {name: tensor.numpy() for name, tensor in batch.items()}


# -- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint16", "int64"])
def test_rows_of_one_array(vulkan_backend, tmp_path, dtype):
    tokens = np.memmap(tmp_path / "tokens", dtype, "w+", shape=(65,))
    tokens[:] = np.arange(65)
    found = [arrays(batch) for batch in data.batches(tokens, 3, 8, shuffle=False, backend=vulkan_backend)]
    assert len(found) == 2  # the last two rows of eight make no batch
    for number, batch in enumerate(found):
        assert batch["input_ids"].dtype == batch["labels"].dtype == np.int32
        wanted = np.arange(24 * number, 24 * number + 24).reshape(3, 8)
        np.testing.assert_array_equal(batch["input_ids"], wanted)
        np.testing.assert_array_equal(batch["labels"], wanted + 1)
    every = [arrays(batch) for batch in data.batches(tokens, 3, 8, drop_last=False, backend=vulkan_backend)]
    assert [len(batch["labels"]) for batch in every] == [3, 3, 2]
    rows = np.concatenate([batch["input_ids"] for batch in every])
    np.testing.assert_array_equal(rows[np.argsort(rows[:, 0])], np.arange(64).reshape(8, 8))


def test_each_epoch_has_another_order_that_the_seed_tells(vulkan_backend):
    def order(seed, epochs=2):
        batches = data.batches(np.arange(101), 5, 10, seed=seed, epochs=epochs, backend=vulkan_backend)
        assert len(batches) == 2 * epochs
        found = [arrays(batch)["input_ids"][:, 0] // 10 for batch in batches]
        assert len(batches) == 0
        return np.concatenate(found).reshape(epochs, 10)

    first = order(1)
    np.testing.assert_array_equal(np.sort(first), [range(10)] * 2)
    assert (first[0] != first[1]).any()
    np.testing.assert_array_equal(order(1), first)
    assert (order(2) != first).any()


@pytest.mark.parametrize("done", [0, 1, 3, 7, 8, 20])
def test_a_state_goes_on(vulkan_backend, done):
    def begin(**options):
        return data.batches(np.arange(401), 5, 10, seed=3, epochs=None, backend=vulkan_backend, **options)

    whole = begin()
    wanted = [arrays(next(whole)) for _ in range(done + 3)][done:]
    part = begin()
    for _ in range(done):
        next(part)
    state = json.loads(json.dumps(part.state))
    again = begin(state=state)
    assert again.state == state and again.place == done
    for batch in wanted:
        np.testing.assert_array_equal(arrays(next(again))["input_ids"], batch["input_ids"])
    with pytest.raises(TypeError, match="they have no end"):
        len(again)


def test_what_a_batch_is_of_stays_as_it_was(vulkan_backend):
    """The next one is read and sent while one is used: none of them shares memory."""
    tokens = np.arange(401)
    held = list(data.batches(tokens, 5, 10, shuffle=False, backend=vulkan_backend))
    found = np.concatenate([arrays(batch)["input_ids"] for batch in held])
    np.testing.assert_array_equal(found, np.arange(400).reshape(-1, 10))


@pytest.mark.parametrize("arguments, options, error, why", [
    ((np.zeros(100), 2, 8), {}, TypeError, r"tokens are float64 \(100,\)"),
    (([1, 2, 3], 2, 8), {}, TypeError, "tokens are list; expected an array of integers"),
    ((np.zeros((4, 8), int), 2, 8), {}, TypeError, r"int64 \(4, 8\)"),
    ((np.arange(100), 2), {}, ValueError, "length is missing"),
    ((np.arange(100), 0, 8), {}, ValueError, "batch_size is 0; expected at least 1"),
    ((np.arange(100), 2, 0), {}, ValueError, "length is 0"),
    ((np.arange(100), 2, 8), {"seed": -1}, ValueError, "seed is -1"),
    ((np.arange(100), 2, 8), {"epochs": 0}, ValueError, "epochs is 0"),
    ((np.arange(16), 2, 8), {}, ValueError, "there are 1 rows of 8 tokens; a batch has 2"),
    ((np.arange(100), 2, 8), {"state": {"seed": 1}}, ValueError, "the state is of seed 1, and this is 0"),
    ((np.arange(100), 2, 8), {"state": [1]}, ValueError, "state is a list; expected a mapping"),
    ((np.arange(100), 2.5, 8), {}, TypeError, "batch_size"),
])  # fmt: skip
def test_bad_input_of_batches(vulkan_backend, arguments, options, error, why):
    with pytest.raises(error, match=why):
        data.batches(*arguments, backend=vulkan_backend, **options)


# -- packing ----------------------------------------------------------------------------------------------------------


def unpacked(rows):
    """The tokens and labels of each sample, in the rows' order."""
    found = []
    for row in range(len(rows)):
        for segment in range(1, rows.segment_ids[row].max() + 1):
            where = rows.segment_ids[row] == segment
            np.testing.assert_array_equal(rows.position_ids[row][where], np.arange(where.sum()))
            found.append((rows.input_ids[row][where].tolist(), rows.labels[row][where].tolist()))
    return found


def test_samples_are_packed_whole():
    rng = np.random.default_rng(0)
    samples = [rng.integers(0, 99, rng.integers(2, 33)).tolist() for _ in range(200)]
    rows = data.pack(samples, 32, padding=7)
    assert sorted(unpacked(rows)) == sorted((sample[:-1], sample[1:]) for sample in samples)
    empty = rows.segment_ids == 0
    assert (rows.input_ids[empty] == 7).all() and (rows.labels[empty] == data.IGNORED).all()
    assert rows.filled == 1 - empty.mean() > 0.9
    assert rows.input_ids.shape[1] == 32 and rows.labels.dtype == np.int32


def test_samples_that_no_row_takes():
    rows = data.pack([list(range(11))], 4)
    assert unpacked(rows) == [([0, 1, 2, 3], [1, 2, 3, 4]), ([4, 5, 6, 7], [5, 6, 7, 8]), ([8, 9], [9, 10])]
    learned = [False] * 3 + [True] * 8
    assert unpacked(data.pack([data.Sample(list(range(11)), learned)], 4)) == [([0, 1, 2, 3], [-100, -100, 3, 4])]
    assert len(data.pack([data.Sample(list(range(11)), [False] * 9 + [True] * 2)], 4)) == 0, "nothing to learn is left"
    assert len(data.pack([[], [1]], 4)) == 0
    assert data.pack([], 4).filled == 0


@pytest.mark.parametrize("samples, length, error, why", [
    ([[1, 2]], 0, ValueError, "length is 0; expected at least 1"),
    ([data.Sample([1, 2], [True])], 4, ValueError, "a sample has 2 tokens and says of 1 whether they are learned"),
    ([[0.5, 1]], 4, TypeError, r"a sample's tokens are float64 \(2,\)"),
    ([[[1, 2]]], 4, TypeError, r"int64 \(1, 2\)"),
])  # fmt: skip
def test_bad_input_of_pack(samples, length, error, why):
    with pytest.raises(error, match=why):
        data.pack(samples, length)


def test_batches_of_rows(vulkan_backend):
    rows = data.pack([list(range(n, n + 6)) for n in range(12)], 11)
    batches = data.batches(rows, 2, seed=1, backend=vulkan_backend)
    found = [arrays(batch) for batch in batches]
    assert list(found[0]) == ["input_ids", "labels", "position_ids", "segment_ids"]
    for name in found[0]:
        both = np.concatenate([batch[name] for batch in found])
        np.testing.assert_array_equal(np.sort(both, axis=None), np.sort(getattr(rows, name), axis=None))
    with pytest.raises(ValueError, match="length is 8; the rows have 11 tokens"):
        data.batches(rows, 2, 8, backend=vulkan_backend)


# -- texts and chats --------------------------------------------------------------------------------------------------

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
#: The last answer alone is shown with its thoughts.
THINKING = (
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.role == 'assistant' and loop.last %}<think>{{ m.thinking }}</think>{% endif %}"
    "{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def tokenizer(tmp_path):
    """Tokens are letters, and the names of roles and of ends."""

    def make(template=TEMPLATE):
        tokenizers = pytest.importorskip("tokenizers")
        pytest.importorskip("jinja2")
        special = ["<unk>", "</s>", "<user>", "<assistant>", "<system>", "<think>", "</think>"]
        letters = [chr(code) for code in range(32, 127)]
        numbers = {word: number for number, word in enumerate(special + letters)}
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="<unk>"))
        made.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
        made.add_special_tokens(special)
        write_tokenizer(tmp_path, made.to_str(), chat_template=template, eos_token="</s>")
        return models.Tokenizer(tmp_path)

    return make


def learned(tokenizer, sample):
    """The text that is learned, and all of it."""
    tokens = np.array(sample.tokens)
    shown = [tokenizer.decode(part, skip_special_tokens=False).replace(" ", "")
             for part in (tokens[np.array(sample.learned)], tokens)]  # fmt: skip
    return tuple(shown)


CHAT = [
    {"role": "system", "content": "Be kind"}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"},
    {"role": "user", "content": "And?"}, {"role": "assistant", "content": "So"}, {"role": "user", "content": "Bye"},
]  # fmt: skip


def test_answers_alone_are_learned(tokenizer):
    tokenizer = tokenizer()
    (sample,) = data.of_chat(tokenizer, CHAT)
    text = "<system>Bekind</s><user>Hi</s><assistant>Yo</s><user>And?</s><assistant>So</s>"
    assert learned(tokenizer, sample) == ("Yo</s>So</s>", text)


def test_answers_that_others_change_are_samples_of_their_own(tokenizer):
    tokenizer = tokenizer(THINKING)
    chat = [{**message, "thinking": "hm"} for message in CHAT]
    first, second = data.of_chat(tokenizer, chat)
    assert learned(tokenizer, first)[0] == "<think>hm</think>Yo</s>"
    shown = learned(tokenizer, second)
    assert shown[0] == "<think>hm</think>So</s>" and "<assistant>Yo</s>" in shown[1]


def test_texts_end(tokenizer):
    tokenizer = tokenizer()
    sample = data.of_text(tokenizer, "ab")
    assert sample.learned is None and sample.tokens[-1] == 1 and len(sample.tokens) == 3
    assert data.of_text(tokenizer, "ab</s>").tokens == sample.tokens


def test_a_chat_without_answers(tokenizer):
    with pytest.raises(ValueError, match="no message whose role is assistant"):
        data.of_chat(tokenizer(), CHAT[:2])


def test_files(tokenizer, tmp_path):
    file = tmp_path / "data.jsonl"
    lines = [{"text": "ab"}, {"messages": CHAT}, {"text": "c"}]
    file.write_text("\ufeff" + "\n\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    samples = data.read_jsonl(file, tokenizer())
    assert [sample.learned is None for sample in samples] == [True, False, True]


@pytest.mark.parametrize("line, why", [
    ("{", "it is no JSON"), ("[1]", "it is none; expected an object with either text or messages"),
    ('{"txt": "a"}', "it is an object with txt; expected"), ("{}", "it is an object with nothing"),
    ('{"text": "a", "messages": []}', "it is an object with text, messages"),
    ('{"text": 3}', "text is 3; expected letters"), ('{"messages": "hi"}', "messages is 'hi'; expected a list"),
    ('{"messages": [{"content": "x"}]}', r"messages\[0\] is .*; expected an object with role and content"),
    ('{"messages": [{"role": "user", "content": "x"}]}', "the conversation has no message whose role is"),
])  # fmt: skip
def test_bad_lines_are_named(tokenizer, tmp_path, line, why):
    file = tmp_path / "data.jsonl"
    file.write_text('{"text": "ab"}\n\n' + line + "\n")
    with pytest.raises(ValueError, match=f"data.jsonl:3: {why}"):
        data.read_jsonl(file, tokenizer())


def test_bad_files(tokenizer, tmp_path):
    file, tokenizer = tmp_path / "data.jsonl", tokenizer()
    file.write_bytes(b'{"text": "ab"}\n{"text": "\xff"}\n')
    with pytest.raises(ValueError, match="data.jsonl:2: it is no UTF-8 at byte 11"):
        data.read_jsonl(file, tokenizer)
    file.write_text("\n")
    with pytest.raises(ValueError, match="there are no lines"):
        data.read_jsonl(file, tokenizer)
    with pytest.raises(FileNotFoundError):
        data.read_jsonl(tmp_path / "none", tokenizer)
    assert grilly.data is data
