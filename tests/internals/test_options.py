"""Options of attention: one record, one list of keywords, and no word of another library's among ours."""

from __future__ import annotations

import dataclasses
import inspect
import typing

import pytest

import grilly
import grilly.functional as F
from grilly import nn
from grilly.compute.attention import foreign, keywords
from grilly.compute.attention.options import NAMES, OPTIONS, Options
from grilly.compute.methods import Attention
from grilly.compute.unfused.dropout import dropout_mask
from grilly.functional import keywords as function_keywords
from grilly.nn import foreign as layer_words
from test_foreign_words import Cupy
from test_typing import OPERATIONS, parameters


@pytest.mark.parametrize(
    "shape, error",
    [((-1, 4), ValueError), (-3, ValueError), (2.7, TypeError), ((2, 2.0), TypeError), ("3", TypeError),
     ((2, "x"), TypeError), (None, TypeError), ((2, (3, 4)), TypeError), ((True, 2), TypeError)],
)  # fmt: skip
def test_shapes_of_new_arrays(backend, shape, error):
    for make in (backend.empty, backend.host_empty):
        with pytest.raises(error, match="shape"):
            make(shape)
    with pytest.raises((ValueError, TypeError), match="shape"):
        dropout_mask(backend.opened, shape, 0.5, 1)


#: What functions take by keyword, but for return_lse, which chooses the result.
TAKEN = {
    "flash_attention2": keywords.AttentionKeywords,
    "flash_attention3": keywords.JoinedKeywords,
    "flash_attention2_backward": keywords.GradientKeywords,
    "flash_attention_varlen": keywords.PackedKeywords,
    "flash_attention_varlen_backward": keywords.PackedGradientKeywords,
    "flash_attention_with_kvcache": keywords.CacheKeywords,
    "cascade_attention": keywords.CascadeKeywords,
}


def test_options_have_one_list_of_names_and_types():
    hints = typing.get_type_hints(Options)
    assert typing.get_type_hints(keywords.OptionKeywords) == hints
    assert sorted([*(name for option in OPTIONS for name in option.arguments)]) == sorted(NAMES)
    assert [field.name for field in dataclasses.fields(Options)] == list(NAMES)


@pytest.mark.parametrize("name", TAKEN)
def test_functions_take_the_keywords_that_checkers_know(name):
    expected = typing.get_type_hints(TAKEN[name])
    for home in (F, Attention) if name in OPERATIONS else (F,):
        found = parameters(getattr(home, name))
        found.pop("return_lse", None)
        assert found == expected


def test_caches_in_host_memory_take_the_same_keywords():
    assert keywords.HostCacheKeywords.__annotations__.keys() == keywords.CacheKeywords.__annotations__.keys()


def test_words_of_functions_are_not_their_own():
    for name, words in function_keywords._KEYWORDS.items():
        function = getattr(F, name)
        takes_words = bool(function.__code__.co_flags & inspect.CO_VARKEYWORDS)
        assert takes_words or hasattr(function, "__wrapped__"), "others' words reach no one"
        *_, last = inspect.signature(function).parameters.values()
        assert last.kind is not last.VAR_KEYWORD or takes_words
        assert not words.keys() & inspect.signature(function).parameters.keys(), name


def test_words_of_layers_are_not_their_own():
    for name, words in layer_words._KEYWORDS.items():
        layer = getattr(nn, name)
        taken = [{*inspect.signature(f).parameters} for f in (layer.__init__, layer.forward)]
        for word in words:
            assert not all(word in each for each in taken), (name, word)


def test_no_word_of_ours_counts_as_foreign():
    own = {*NAMES, "mask", "causal", "scale", "return_lse", "kernel", "precision"}
    assert not own & set(foreign.KEYWORDS)
    given = inspect.signature(F.scaled_dot_product_attention).parameters
    assert not given.keys() & foreign.SDPA_KEYWORDS.keys()
    assert not inspect.signature(F.flash_attention_with_kvcache).parameters.keys() & foreign.CACHE_KEYWORDS.keys()
    assert not inspect.signature(F.flash_attention_varlen).parameters.keys() & foreign.PACKED_KEYWORDS.keys()
    assert not inspect.signature(F.cascade_attention).parameters.keys() & foreign.CASCADE_KEYWORDS.keys()
    assert not inspect.signature(F.merge_attention).parameters.keys() & foreign.MERGE_KEYWORDS.keys()
    for name, words in foreign.STEP_KEYWORDS.items():
        assert not inspect.signature(getattr(F, name, grilly.FlashConfig)).parameters.keys() & words.keys(), name


@pytest.mark.parametrize("make", [grilly.asarray, grilly.from_dlpack])
def test_memory_of_cuda_is_not_shared_without_its_interface(vulkan_backend, make, monkeypatch):
    monkeypatch.setattr("grilly.compute.device.exchange._open", None)
    monkeypatch.setattr(vulkan_backend.opened, "exchange", None)
    with pytest.raises(BufferError, match="the array is CUDA's, whose memory is not shared: .*import grilly.cuda, or"):
        make(Cupy(), device=vulkan_backend)
