"""What users of PyTorch, flash-attn and transformers give by habit leads to grilly's word for it, or is taken."""

import warnings

import numpy as np
import pytest

import grilly
import grilly.functional as F
from grilly.compute.attention import foreign
from grilly.compute.attention.options import NAMES

Q, K = np.ones((2, 2, 3, 4), np.float32), np.ones((2, 2, 5, 4), np.float32)


@pytest.mark.parametrize(
    "keyword, word",
    [
        ("is_causal", "causal"), ("attn_mask", "mask"), ("key_padding_mask", r"mask=m\[:, None, None\]"),
        ("dropout", "dropout_p"), ("softmax_scale", "scale"), ("sliding_window", "window_size"), ("s_aux", "sinks"),
        ("position_bias", "attn_bias"), ("cu_seqlens_q", "F.flash_attention_varlen"),
        ("enable_gqa", "nothing: key heads"), ("block_table", "F.flash_attention_with_kvcache"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("function", ["flash_attention2", "flash_attention3"])
def test_keywords_of_others_name_ours(vulkan_backend, function, keyword, word):
    with pytest.raises(TypeError, match=f"{function}: got an unexpected keyword argument '{keyword}'; .* {word}"):
        getattr(vulkan_backend.attention, function)(Q, K, K, **{keyword: 1})


def test_each_function_says_its_own_words(vulkan_backend):
    with pytest.raises(TypeError, match="'mask'; here give attn_mask$"):
        F.scaled_dot_product_attention(Q, K, K, mask=None)
    with pytest.raises(TypeError, match="'causal'; here give is_causal, which begins at the top left"):
        F.scaled_dot_product_attention(Q, K, K, causal=True)
    with pytest.raises(TypeError, match="flash_attention_varlen: .*'softmax_scale'; here give scale$"):
        F.flash_attention_varlen(Q[0], K[0], K[0], [0, 2], [0, 2], 2, 2, softmax_scale=1.0)
    with pytest.raises(TypeError, match="flash_attention_varlen_backward: .*'is_causal'; here give causal"):
        F.flash_attention_varlen_backward(Q[0], Q[0], K[0], K[0], Q[0], Q[0], [0, 2], [0, 2], 2, 2, is_causal=True)
    with pytest.raises(TypeError, match="flash_attention_with_kvcache: .*'block_table'; here give page_table$"):
        F.flash_attention_with_kvcache(Q, K, K, block_table=None)
    with pytest.raises(TypeError, match="unexpected keyword argument 'anything'$"):
        F.flash_attention_with_kvcache(Q, K, K, anything=None)


def test_no_word_of_ours_counts_as_foreign():
    own = {*NAMES, "mask", "causal", "scale", "return_lse", "kernel", "precision"}
    assert not own & set(foreign.WORDS)


def test_a_padding_mask_of_two_axes(vulkan_backend):
    attend = vulkan_backend.attention.flash_attention2
    padding = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
    with pytest.raises(ValueError, match=r"does not broadcast .*a padding mask \(B, Sk\).*mask\[:, None, None\]"):
        attend(Q, K, K, mask=padding)
    with pytest.warns(UserWarning, match=r"taken as \(Sq, Sk\).*mask\[None, None\].*mask\[:, None, None\]"):
        attend(Q[:, :, :2], K, K, mask=padding)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attend(Q[:, :, :2], K, K, mask=padding[None, None])
        attend(Q[:, :, :2], K, K, mask=padding[:, None, None])
        attend(Q[:1, :, :2], K[:1], K[:1], mask=padding)
        F.scaled_dot_product_attention(Q[:, :, :2], K, K, padding)  # which says that two axes are (L, S)


class OnlyArray:
    """What has a shape, a dtype and ``__array__``, as arrays of other libraries do."""

    shape, dtype = Q.shape, Q.dtype

    def __array__(self, dtype=None, copy=None):
        return Q


class OnlyCapsule:
    """What offers ``__dlpack__`` and nothing else."""

    def __dlpack__(self, **options):
        return Q.__dlpack__(**options)

    def __dlpack_device__(self):
        return (1, 0)


#: PyTorch's class, as far as the messages look at it.
Torch = type("Tensor", (), {"__module__": "torch", "shape": Q.shape, "dtype": object(), "__array__": lambda self: Q})


@pytest.mark.parametrize(
    "given, words",
    [
        (OnlyArray(), "q is a OnlyArray; expected a numpy.ndarray or a grilly.Tensor; give numpy.asarray"),
        (OnlyCapsule(), "q is a OnlyCapsule; .*grilly.from_dlpack"),
        (Torch(), "q is a torch.Tensor; .*grilly.torch.attention.*numpy()"),
        ([1.0], "q is a list; expected a numpy.ndarray or a grilly.Tensor$"),
    ],
)  # fmt: skip
def test_other_libraries_arrays_are_refused_with_a_way(vulkan_backend, given, words):
    with pytest.raises(TypeError, match=words):
        vulkan_backend.attention.flash_attention2(given, K, K)
    other = words.replace("q is", "x is")
    with pytest.raises(TypeError, match=other):
        vulkan_backend.attention.softmax(given)
    with pytest.raises(TypeError, match=words.replace("q is", "mask is")):
        vulkan_backend.attention.flash_attention2(Q, K, K, mask=given)
    with pytest.raises(TypeError, match=words.replace("q is", "attn_bias is")):
        vulkan_backend.attention.flash_attention2(Q, K, K, attn_bias=given)
    with pytest.raises(TypeError, match=other):
        grilly.nn.Linear(4, 2)(given)


def test_a_capsule_goes_in_by_from_dlpack(vulkan_backend):
    np.testing.assert_array_equal(grilly.from_dlpack(OnlyCapsule(), device=vulkan_backend).numpy(), Q)


def test_bfloat16_has_no_capsule(vulkan_backend):
    with pytest.raises(BufferError, match="grilly.torch.to_torch"):
        vulkan_backend.tensor(Q).astype("bfloat16").__dlpack__()
