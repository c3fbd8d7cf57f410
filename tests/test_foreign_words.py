"""What users of PyTorch, flash-attn and transformers give by habit leads to grilly's word for it, or is taken."""

import warnings

import numpy as np
import pytest

import grilly
import grilly.functional as F
from grilly import nn
from grilly.models.generation import Generates
from model_folders import unmade

X = np.ones((2, 3, 4), np.float32)
Q, K = np.ones((2, 2, 3, 4), np.float32), np.ones((2, 2, 5, 4), np.float32)


@pytest.mark.parametrize(
    "keyword, word",
    [
        ("is_causal", "causal"), ("attn_mask", "mask"), ("key_padding_mask", r"mask=m\[:, None, None\]"),
        ("dropout", "dropout_p"), ("softmax_scale", "scale"), ("sliding_window", "window_size"), ("s_aux", "sinks"),
        ("position_bias", "attn_bias"), ("cu_seqlens_q", "F.flash_attention_varlen"),
        ("enable_gqa", "nothing: key heads"), ("past_key_values", "F.flash_attention_with_kvcache or nn.KVCache"),
        ("num_splits", "nothing: how the work"), ("seqused_q", "seqlens_q"), ("max_length_q", "as max_seqlen_q"),
        ("return_aux", "return_lse"), ("cache_position", "nn.KVCache"), ("p", "dropout_p"),
        ("block_table", "F.flash_attention_with_kvcache"), ("soft_cap", "softcap"), ("logit_softcap", "softcap"),
        ("local_window_size", "window_size"), ("query_seq_lengths", "seqlens_q"), ("head_mask", "nothing: multiply"),
        ("key_value_seq_lengths", "seqlens_k"), ("use_top_left_mask", "F.scaled_dot_product_attention"),
        ("generator", "dropout_seed"), ("training", "dropout_p=0.0"), ("block_mask", "mask_mod=grilly.block_mask"),
        ("page_table", "F.flash_attention_with_kvcache"), ("sink", "sinks"), ("attn_dropout", "dropout_p"),
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
    for keyword, word in (
        ("window_size", "F.flash_attention2, which has window_size$"), ("return_lse", "F.flash_attention2"),
        ("sliding_window", r"F.flash_attention2, where it is window_size=\(left, right\)"), ("s_aux", "F.*is sinks$"),
        ("key_padding_mask", r"attn_mask=~m\[:, None, None\]"), ("attention_mask", r"attn_mask=m\[:, None, None\]"),
        ("use_top_left_mask", "is_causal"), ("head_mask", "nothing"), ("soft_cap", "F.*where it is softcap$"),
        ("num_key_value_groups", "enable_gqa=True$"), ("need_weights", "nothing"), ("position_bias", "attn_mask"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=f"scaled_dot_product_attention: .*'{keyword}'; here give {word}"):
            F.scaled_dot_product_attention(Q, K, K, **{keyword: None})
    for keyword, word in (
        ("attn_mask", "F.flash_attention2, which has mask"), ("position_bias", "t5_table"), ("use_cache", "k_cache"),
        ("dropout_p", "F.flash_attention2, which has dropout_p"), ("cache_leftpad", "nothing: samples begin at key 0"),
        ("cache_batch_idx", r"page_table=cache_batch_idx\[:, None\]"), ("max_seqlen_q", "nothing: the shapes"),
        ("key_value_seq_lengths", "cache_seqlens"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=f"flash_attention_with_kvcache: .*'{keyword}'; here give {word}"):
            F.flash_attention_with_kvcache(Q, K, K, **{keyword: None})
    with pytest.raises(TypeError, match=r"rotary is a RoPE; expected \(cosines, sines\); nn.KVCache.attend takes the"):
        F.flash_attention_with_kvcache(K, K, K, K, K, np.zeros(2, np.int32), rotary=nn.RoPE(4))
    with pytest.raises(TypeError, match="flash_attention_varlen: .*'softmax_scale'; here give scale$"):
        F.flash_attention_varlen(Q[0], K[0], K[0], [0, 2], [0, 2], 2, 2, softmax_scale=1.0)
    for keyword, word in (
        ("attn_bias", "F.flash_attention2, which has attn_bias"), ("position_bias", "F.*which has attn_bias"),
        ("segment_ids", "nothing: cu_seqlens_q"), ("seqused_k", "cu_seqlens_k"), ("past_key_values", "F.*KVCache"),
        ("cache_seqlens", "F.flash_attention_with_kvcache"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=f"flash_attention_varlen: .*'{keyword}'; here give {word}"):
            F.flash_attention_varlen(Q[0], K[0], K[0], [0, 2], [0, 2], 2, 2, **{keyword: None})
    with pytest.raises(TypeError, match="flash_attention_varlen_backward: .*'is_causal'; here give causal"):
        F.flash_attention_varlen_backward(Q[0], Q[0], K[0], K[0], Q[0], Q[0], [0, 2], [0, 2], 2, 2, is_causal=True)
    with pytest.raises(TypeError, match="flash_attention_with_kvcache: .*'block_table'; here give page_table$"):
        F.flash_attention_with_kvcache(Q, K, K, block_table=None)
    with pytest.raises(TypeError, match="flash_attention_with_kvcache: .*'attention_mask'; here give cache_seqlens"):
        F.flash_attention_with_kvcache(Q, K, K, attention_mask=None)
    with pytest.raises(TypeError, match="flash_attention_varlen: .*'mask'; here give F.flash_attention2"):
        F.flash_attention_varlen(Q[0], K[0], K[0], [0, 2], [0, 2], 2, 2, mask=None)
    with pytest.raises(TypeError, match="unexpected keyword argument 'anything'$"):
        F.flash_attention_with_kvcache(Q, K, K, anything=None)


@pytest.mark.parametrize("function", ["flash_attention2", "flash_attention3", "flash_attention_varlen"])
def test_arrays_by_the_names_of_pytorch(vulkan_backend, function):
    """Python would say that q, k and v are missing."""
    with pytest.raises(TypeError, match=f"{function}: got an unexpected keyword argument 'query'; here give q$"):
        getattr(F, function)(query=Q, key=K, value=K)
    with pytest.raises(TypeError, match="scaled_dot_product_attention: .* 'q'; here give query$"):
        F.scaled_dot_product_attention(q=Q, k=K, v=K)
    with pytest.raises(TypeError, match="cross_entropy: .* 'logits'; here give input$"):
        F.cross_entropy(logits=X[0], labels=[1, 2, 0])
    with pytest.raises(TypeError, match="missing 3 required"):
        getattr(F, function)(anything=Q) if function != "flash_attention_varlen" else F.flash_attention2(anything=Q)


def test_batches_of_a_cache_as_pages(vulkan_backend):
    """What the word for cache_batch_idx says."""
    caches, index = np.random.default_rng(0).standard_normal((2, 5, 6, 2, 4), dtype=np.float32), np.array([3, 1])
    q = np.ones((2, 1, 2, 4), np.float32)
    found = F.flash_attention_with_kvcache(q, *caches, cache_seqlens=4, page_table=index[:, None].astype(np.int32))
    want = F.flash_attention_with_kvcache(q, *caches[:, index], cache_seqlens=4)
    np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "make, keyword, word",
    [
        (lambda **more: nn.MultiheadAttention(4, 2, **more), "batch_first", r"nothing: inputs are always \(B, S, E\)"),
        (lambda **more: nn.MultiheadAttention(4, 2, **more), "dropout", "FlashAttention has dropout"),
        (lambda **more: nn.MultiheadAttention(4, 2, **more), "add_bias_kv", "F.flash_attention2, to whose k and v"),
        (lambda **more: nn.MultiheadAttention(4, 2, **more), "add_zero_attn", "F.flash_attention2, with sinks="),
        (lambda **more: nn.Linear(4, 2, **more), "dtype", r"layer.to\(backend, dtype\)"),
        (lambda **more: nn.RoPE(4, **more), "rope_theta", "base$"),
        (lambda **more: nn.MultiheadAttention(4, 2)(X, **more), "key_padding_mask", r"mask.*~m\[:, None, None\]"),
        (lambda **more: nn.MultiheadAttention(4, 2)(X, **more), "attn_mask", "mask.*~m for a boolean one"),
        (lambda **more: nn.MultiheadAttention(4, 2)(X, **more), "is_causal", "causal"),
        (lambda **more: nn.MultiheadAttention(4, 2)(X, **more), "dropout_p", "FlashAttention has dropout"),
        (lambda **more: nn.MultiheadAttention(4, 2)(X, **more), "past_key_values", "cache"),
        (lambda **more: nn.TransformerEncoderLayer(4, 2, **more), "batch_first", "nothing"),
        (lambda **more: nn.TransformerEncoderLayer(4, 2)(X, **more), "src_key_padding_mask", r"~m\[:, None, None\]"),
        (lambda **more: nn.TransformerDecoderLayer(4, 2)(X, X, **more), "memory_key_padding_mask", "memory_mask"),
        (lambda **more: nn.TransformerEncoderLayer(4, 2)(**more), "src", "x$"),
        (lambda **more: nn.TransformerDecoderLayer(4, 2)(memory=X, **more), "tgt", "x$"),
        (lambda **more: nn.TransformerDecoderLayer(4, 2)(X, X, **more), "memory_is_causal", "memory_mask"),
        (lambda **more: nn.Softmax(**more), "axis", "dim$"), (lambda **more: nn.LogSoftmax(**more), "axis", "dim$"),
        (lambda **more: nn.GLU(**more), "axis", "dim$"),
        (lambda **more: nn.Embedding(3, 4, **more), "sparse", "nothing"),
        (lambda **more: nn.CrossEntropyLoss(**more), "size_average", "reduction$"),
        (lambda **more: nn.RoPE(4)(Q, **more), "position_ids", "positions$"),
        (lambda **more: nn.RoPE(4, **more), "rope_type", "scaling="),
        (lambda **more: nn.RoPE(**more), "head_dim", "dim$"),
        (lambda **more: nn.RoPE(4, **more), "traditional", "interleaved$"),
        (lambda **more: nn.RoPE(4, **more), "rope_parameters", "scaling$"),
        (lambda **more: nn.MultiheadAttention(4, 2, **more), "num_key_value_heads", "F.flash_attention2"),
        (lambda **more: nn.MultiheadAttention(4, 2)(X, **more), "sliding_window", "F.*which has window_size"),
        (lambda **more: nn.FlashAttention2(4, 2)(X, X, X, **more), "is_causal", "causal"),
        (lambda **more: nn.FlashAttention2(4, 2)(X, X, X, **more), "key_padding_mask", r"mask.*~m\[:, None, None\]"),
        (lambda **more: nn.FlashAttention2(4, 2, **more), "softmax_scale", "scale$"),
        (lambda **more: nn.FlashAttention3(4, 2)(X, X, X, **more), "dropout_p", "FlashAttention has dropout"),
        (lambda **more: nn.FlashAttention(**more), "dropout_p", "dropout, when"),
        (lambda **more: nn.FlashAttention()(Q, K, K, **more), "attn_mask", "mask"),
        (lambda **more: nn.TransformerEncoderLayer(4, 2)(X, **more), "attention_mask", r"mask=m\[:, None, None\]"),
        (lambda **more: nn.TransformerDecoderLayer(4, 2)(X, X, **more), "encoder_attention_mask", "memory_mask="),
        (lambda **more: nn.TransformerDecoderLayer(4, 2)(X, X, **more), "attn_mask", "mask.*~m for a boolean one"),
        (lambda **more: nn.TransformerDecoderLayer(4, 2)(X, X, **more), "key_padding_mask", r"~m\[:, None, None\]"),
        (lambda **more: nn.TransformerDecoderLayer(4, 2)(X, X, **more), "is_causal", "causal$"),
        (lambda **more: nn.MultiheadAttention(4, 2)(X, **more), "encoder_hidden_states", "key$"),
        (lambda **more: nn.MultiheadAttention(4, 2)(X, **more), "encoder_attention_mask", "mask=m"),
        (lambda **more: nn.MultiheadAttention(4, 2)(X, **more), "attn_bias", "mask, floating"),
        (lambda **more: nn.MultiheadAttention(4, 2)(X, **more), "position_ids", "nothing: the layer turns nothing"),
        (lambda **more: nn.RoPE(4)(Q, **more), "seqlen_offset", "offset$"),
        (lambda **more: nn.RMSNorm(4, **more), "variance_epsilon", "eps$"),
        (lambda **more: nn.LayerNorm(4, **more), "layer_norm_eps", "eps$"),
        (lambda **more: nn.Parameter(X, **more), "requires_grad", "nothing: backward finds"),
        (lambda **more: nn.KVCache(**more), "max_batch_size", "batch$"),
        (lambda **more: nn.KVCache(1, **more), "max_cache_len", "max_len$"),
        (lambda **more: nn.KVCache(1, 8, **more), "num_key_value_heads", "num_heads$"),
        (lambda **more: nn.KVCache(1, 8, 2, 4, **more), "device", "backend$"),
        (lambda **more: nn.KVCache(**more), "config", "batch, max_len, num_heads and head_dim"),
        (lambda **more: grilly.FlashConfig(**more), "softmax_scale", "scale$"),
        (lambda **more: grilly.FlashConfig(**more), "is_causal", "causal"),
        (lambda **more: grilly.models.load(".", **more), "torch_dtype", "dtype$"),
        (lambda **more: grilly.models.load(".", **more), "device_map", "backend$"),
        (lambda **more: Generates.generate(None, X, **more), "max_length", "max_new_tokens"),
        (lambda **more: Generates.generate(None, X, **more), "num_beams", "nothing"),
        (lambda **more: Generates.generate(None, X, **more), "use_cache", "nothing"),
        (lambda **more: Generates.generate(None, X, **more), "streamer", "nothing; model.stream"),
        (lambda **more: Generates.stream(None, X, **more), "num_beams", "nothing"),
        (lambda **more: Generates.stream(None, X, **more), "max_length", "max_new_tokens"),
        (lambda **more: unmade("Whisper").generate(X, **more), "language", "it to transcribe.. of a"),
        (lambda **more: unmade("Whisper").stream(X, **more), "task", "it to transcribe.. of a"),
        (lambda **more: unmade("Whisper")(X, **more), "past_key_values", "nothing: calls of this model keep none"),
        (lambda **more: unmade("Whisper")(X, **more), "encoder_outputs", "what the encoder reads"),
        (lambda **more: unmade("LlamaLM")([[3]], **more), "output_hidden_states", "nothing: the states after the last"),
        (lambda **more: unmade("LlamaLM")([[3]], **more), "output_attentions", "nothing: the weights"),
        (lambda **more: unmade("LlamaLM")([[3]], **more), "return_dict", "nothing: results always have names"),
        (lambda **more: unmade("LlamaLM")([[3]], **more), "use_cache", "past_key_values=model.make_cache"),
        (lambda **more: unmade("LlamaLM")([[3]], **more), "labels", "nothing: grilly.functional.cross_entropy"),
        (lambda **more: unmade("LlamaLM")([[3]], **more), "token_type_ids", "nothing: this model has one type"),
        (lambda **more: unmade("LlamaLM")(**more), "inputs_embeds", "input_ids$"),
        (lambda **more: unmade("ViT")(X, **more), "interpolate_pos_encoding", "nothing: pictures are of the conf"),
    ],
)  # fmt: skip
def test_layers_name_ours(vulkan_backend, make, keyword, word):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{keyword}'; here give .*{word}"):
        make(**{keyword: None})


@pytest.mark.parametrize(
    "call, keyword, word",
    [
        (lambda **more: F.softmax(X, -1, **more), "dtype", "nothing: the result has input's dtype"),
        (lambda **more: F.softmax(X, **more), "axis", "dim$"),
        (lambda **more: F.log_softmax(X, **more), "axis", "dim$"),
        (lambda **more: F.relu(X, **more), "inplace", "nothing"),
        (lambda **more: F.silu(X, **more), "inplace", "nothing"),
        (lambda **more: F.dropout(X, **more), "inplace", "nothing: results are new arrays"),
        (lambda **more: F.cross_entropy(X[0], [1, 2, 0], **more), "size_average", "reduction$"),
        (lambda **more: F.rope(Q, **more), "theta", "base$"), (lambda **more: F.rope(Q, **more), "cos", "frequencies"),
        (lambda **more: F.glu(X, **more), "axis", "dim$"),
        (lambda **more: F.rope(Q, **more), "rope_scaling", "nn.RoPE, which has scaling"),
        (lambda **more: F.rope(Q, **more), "rotary_dim", "nn.RoPE, which has dim"),
        (lambda **more: F.rope(Q, **more), "seqlen_offset", "offset$"),
        (lambda **more: F.embedding([0], X[0], **more), "max_norm", "nothing"),
        (lambda **more: F.embedding([0], X[0], **more), "sparse", "nothing"),
        (lambda **more: F.layer_norm(X, 4, **more), "layer_norm_eps", "eps$"),
        (lambda **more: F.rms_norm(X, 4, **more), "variance_epsilon", "eps$"),
        (lambda **more: F.cross_entropy(X[0], **more), "labels", "target$"),
        (lambda **more: F.attention_scores(Q, K, **more), "softmax_scale", "scale$"),
        (lambda **more: F.attention_scores(Q, K, **more), "causal", "F.attention_mask"),
        (lambda **more: F.attention_mask(X[0], **more), "is_causal", "causal"),
        (lambda **more: F.attention_mask(X[0], **more), "attn_mask", "mask, True = attend"),
        (lambda **more: F.naive_attention(Q, K, K, **more), "causal", "F.attention_mask"),
        (lambda **more: F.naive_attention(Q, K, K, **more), "softmax_scale", "scale$"),
        (lambda **more: F.flash_attention(Q, K, K, **more), "softmax_scale", "config=.*, which has scale"),
        (lambda **more: F.flash_attention(Q, K, K, **more), "is_causal", "config=.*, which has causal"),
        (lambda **more: F.flash_attention(Q, K, K, **more), "attn_mask", "F.flash_attention2, which has mask"),
    ],
)  # fmt: skip
def test_functions_name_ours(vulkan_backend, call, keyword, word):
    with pytest.raises(TypeError, match=f": got an unexpected keyword argument '{keyword}'; here give {word}"):
        call(**{keyword: None})
    with pytest.raises(TypeError, match="unexpected keyword argument 'anything'$"):
        call(anything=None)


@pytest.mark.parametrize(
    "keyword, word",
    [
        ("is_causal", "causal"), ("cache_seqlens", "nothing: the cache counts"), ("rotary_cos", r"rotary=\(cos, sin\)"),
        ("attention_mask", "nothing: KVCache.lengths"), ("sliding_window", "window_size"), ("softmax_scale", "scale$"),
    ],
)  # fmt: skip
def test_a_cache_names_ours(vulkan_backend, keyword, word):
    cache = nn.KVCache(2, 8, 4, 8, backend=vulkan_backend)
    with pytest.raises(TypeError, match=f"KVCache.attend: .* '{keyword}'; here give {word}"):
        cache.attend(np.ones((2, 3, 4, 8), np.float32), **{keyword: None})
    cache.lengths[:] = 1
    with pytest.raises(ValueError, match=r"q has shape \(2, 4, 3, 8\) and k_cache 4 heads; .*swapaxes\(1, 2\)"):
        cache.attend(np.ones((2, 4, 3, 8), np.float32))
    for method, word in (("update", "attend"), ("get_seq_length", r"len\(cache\)"), ("crop", "truncate")):
        with pytest.raises(AttributeError, match=f"no attribute '{method}'; use {word}"):
            getattr(cache, method)
    with pytest.raises(AttributeError, match="no attribute 'anything'$"):
        cache.anything  # noqa: B018


@pytest.mark.needs("torch")
def test_functions_on_pytorchs_tensors_name_ours(vulkan_backend):
    import torch

    import grilly.torch

    q = torch.ones(1, 2, 3, 4)
    with pytest.raises(TypeError, match="torch.attention: .*'is_causal'; here give causal; it is aligned to"):
        grilly.torch.attention(q, q, q, is_causal=True)
    with pytest.raises(TypeError, match="'is_causal'; .*: grilly.torch.scaled_dot_product_attention has that$"):
        grilly.torch.attention(q, q, q, is_causal=True)
    with pytest.raises(TypeError, match="'cu_seqlens_q'; here give grilly.torch.functional.flash_attention_varlen$"):
        grilly.torch.attention(q, q, q, cu_seqlens_q=[0, 3])
    with pytest.raises(TypeError, match="linear: .* there is grilly.torch.functional.linear; or give input.numpy"):
        F.linear(q, q[0, 0])
    with pytest.raises(TypeError, match="grilly.torch.functional.flash_attention2, and .* grilly.torch.attention and"):
        F.flash_attention2(q, q, q)
    with pytest.raises(TypeError, match=r"Linear: .* there is grilly.torch.lift \(any operation\); or give"):
        nn.Linear(4, 2)(q)
    with pytest.raises(TypeError, match="scaled_dot_product_attention: .*'softcap'; here give grilly.torch.attention"):
        grilly.torch.scaled_dot_product_attention(q, q, q, softcap=1.0)
    with pytest.raises(TypeError, match="scaled_dot_product_attention: .*'causal'; here give is_causal"):
        grilly.torch.scaled_dot_product_attention(q, q, q, causal=True)


def test_python_says_what_no_library_has(vulkan_backend):
    with pytest.raises(TypeError, match=r"__init__\(\) got an unexpected keyword argument 'anything'$"):
        nn.Linear(4, 2, anything=1)
    with pytest.raises(TypeError, match=r"forward\(\) got an unexpected keyword argument 'anything'$"):
        nn.MultiheadAttention(4, 2)(X, anything=1)
    with pytest.raises(TypeError, match="query is a NoneType"):
        nn.MultiheadAttention(4, 2)(None, causal=True)


def test_rotary_embedding_of_tokens_before_heads(vulkan_backend):
    """Where the shapes tell: key heads that are fewer than query heads, and positions of another length."""
    q, k = np.ones((2, 5, 4, 8), np.float32), np.ones((2, 5, 2, 8), np.float32)
    rope = nn.RoPE(8)
    with pytest.raises(ValueError, match=r"q has 4 rows and k has 2.*turn \(B, S, H, D\) into \(B, H, S, D\)"):
        rope(q, k)
    with pytest.raises(ValueError, match="positions"):
        rope(q, positions=np.arange(5))
    turned = rope(q.swapaxes(1, 2), k.swapaxes(1, 2), positions=np.arange(5))
    assert [x.shape for x in turned] == [(2, 4, 5, 8), (2, 2, 5, 8)]


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
    with pytest.raises(ValueError, match=r"a padding mask \(B, Sk\).*attn_mask\[:, None, None\]"):
        F.scaled_dot_product_attention(Q, K, K, padding)


def test_a_warning_of_a_mask_names_the_line_that_gave_it(vulkan_backend):
    """Else Python would show it once for all of a program's lines."""
    padding, q = np.ones((2, 5), bool), Q[:, :, :2]
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        F.flash_attention2(q, K, K, mask=padding)
        F.flash_attention3(q, K, K, mask=padding)
        vulkan_backend.attention.flash_attention2(q, K, K, mask=padding)
    assert [warning.filename for warning in shown] == 3 * [__file__]
    first = shown[0].lineno
    assert [warning.lineno for warning in shown] == [first, first + 1, first + 2]


def test_masks_that_say_what_to_write(vulkan_backend):
    x = np.ones((2, 3, 5, 4), np.float32)
    with pytest.raises(ValueError, match=r"one of \(B, H, Sk\) is given as mask\[:, :, None\]"):
        F.flash_attention2(x, x, x, mask=np.ones((2, 3, 5), bool))
    for mask in (np.ones((5, 5), np.int64), grilly.asarray(np.ones((5, 5), np.int32))):
        with pytest.raises(TypeError, match=r"cast it with .astype\(bool\)$"):
            F.flash_attention2(x, x, x, mask=mask)
    with pytest.raises(TypeError, match=r"cast it with .astype\(bool\)$"):
        F.scaled_dot_product_attention(x, x, x, np.ones((5, 5), np.int64))


@pytest.mark.parametrize("rows", [1, 3])
def test_masks_of_three_axes(vulkan_backend, rows):
    """A matrix for each sample, and for each sample and head as in PyTorch's layer; never for heads unasked."""
    attend = vulkan_backend.attention.flash_attention2
    q, k = np.ones((2, 4, 3, 4), np.float32), np.ones((2, 4, 5, 4), np.float32)
    of_samples, of_all = np.ones((2, rows, 5), np.float32), np.ones((8, rows, 5), np.float32)
    for name in ("mask", "attn_bias"):
        with pytest.raises(ValueError, match=rf"one of \(B, Sq, Sk\) is given as {name}\[:, None\]"):
            attend(q, k, k, **{name: of_samples})
        with pytest.raises(ValueError, match=rf"{name}.reshape\(2, 4, {rows}, 5\)"):
            attend(q, k, k, **{name: of_all})
    with pytest.raises(ValueError, match=r"given as attn_mask\[:, None\]"):
        F.scaled_dot_product_attention(q, k, k, of_samples)
    with pytest.warns(UserWarning, match=r"taken as \(H, Sq, Sk\).*mask\[None\].*mask\[:, None\]"):
        attend(q[:, :2], k[:, :2], k[:, :2], mask=of_samples)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attend(q, k, k, mask=np.ones((4, rows, 5), bool))
        attend(q[:, :2], k[:, :2], k[:, :2], mask=of_samples[None])
        attend(q[:, :2], k[:, :2], k[:, :2], mask=of_samples[:, None])
        F.scaled_dot_product_attention(q[:, :2], k[:, :2], k[:, :2], of_samples)


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


#: CuPy's and PyTorch's classes, as far as the messages look at them.
_OF_CUDA = {"__dlpack__": lambda self, **_: None, "__dlpack_device__": lambda self: (2, 0)}
Cupy = type("ndarray", (), {"__module__": "cupy", **_OF_CUDA})
Torch = type("Tensor", (), {"__module__": "torch", "shape": Q.shape, "dtype": object(), "__array__": lambda self: Q})


@pytest.mark.parametrize(
    "given, words",
    [
        (OnlyArray(), "q is a OnlyArray; expected a numpy.ndarray or a grilly.Tensor; give numpy.asarray"),
        (OnlyCapsule(), "q is a OnlyCapsule; .*grilly.from_dlpack"),
        (Cupy(), "q is a cupy.ndarray; .*grilly.from_dlpack"),
        (Torch(), "q is a torch.Tensor; .*grilly.torch..*numpy()"),
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
    with pytest.raises(TypeError, match=words.replace("q is", "input is")):
        grilly.nn.Linear(4, 2)(given)


@pytest.mark.parametrize(
    "other, words",
    [
        (type("Tensor", (OnlyCapsule,), {"__module__": "torch"})(), "a torch.Tensor; grilly.torch.from_torch makes"),
        (OnlyCapsule(), "a OnlyCapsule; grilly.from_dlpack makes"), ([1.0], "a list; grilly.asarray makes"),
        ((1.0,), "a tuple; grilly.asarray makes"),
        (grilly.nn.Parameter(X), r"a Parameter; parameter.on\(backend\) makes"),
    ],
)  # fmt: skip
def test_operators_refuse_other_libraries_arrays(vulkan_backend, other, words):
    """Also the comparisons: Python's own answer would be that they are unequal."""
    t = vulkan_backend.tensor(X)
    for name, call in (
        ("add", lambda: t + other), ("subtract", lambda: other - t), ("matmul", lambda: t @ other),
        ("matmul", lambda: other @ t), ("equal", lambda: t == other), ("equal", lambda: other == t),
        ("not_equal", lambda: t != other), ("less", lambda: t < other), ("multiply", lambda: t.__imul__(other)),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=f"{name}: an operand is {words} a grilly.Tensor of it"):
            call()
    assert (t == None) is False and (t == "x") is False and t not in ({}, None)  # noqa: E711


def test_functions_name_the_tensor_of_a_parameter(vulkan_backend):
    """NumPy's array of it would have no gradient."""
    weight = grilly.nn.Parameter(X)
    with pytest.raises(TypeError, match=r"linear: weight is a Parameter; .*; give weight.on\(backend\)"):
        F.linear(vulkan_backend.tensor(X), weight)


def test_a_capsule_goes_in_by_from_dlpack(vulkan_backend):
    np.testing.assert_array_equal(grilly.from_dlpack(OnlyCapsule(), device=vulkan_backend).numpy(), Q)
    np.testing.assert_array_equal(vulkan_backend.tensor(OnlyCapsule()).numpy(), Q)
    np.testing.assert_array_equal(vulkan_backend.tensor(OnlyArray()).numpy(), Q)


@pytest.mark.parametrize(
    "name, way",
    [
        ("sum", r"grilly.sum\(t\)"), ("argmax", r"grilly.argmax\(t\)"), ("cumsum", r"grilly.cumulative_sum\(t\)"),
        ("detach", "t itself"), ("cpu", r"t.numpy\(\)"), ("to", r"t.astype\(dtype\)"),
        ("half", r"t.astype\(.float16.\)"), ("permute", "t.transpose"), ("flatten", r"t.reshape\(-1\)"),
        ("copy", "t.astype"),
    ],
)  # fmt: skip
def test_methods_of_others_name_ours(vulkan_backend, name, way):
    t = vulkan_backend.tensor(X)
    assert not hasattr(t, name)
    with pytest.raises(AttributeError, match=f"'Tensor' object has no attribute '{name}'; here give {way}"):
        getattr(t, name)


@pytest.mark.parametrize("name", ["no_such_thing", "_hidden", "__cuda_array_interface__"])
def test_what_nobody_has_is_only_missing(vulkan_backend, name):
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'$"):
        getattr(vulkan_backend.tensor(X), name)


def test_heads_after_tokens_are_seen_where_they_do_not_fit(vulkan_backend):
    """(B, S, H, D) with more keys than queries; where turning would not help, nothing is said of it."""
    q, k = np.zeros((1, 8, 4, 16), np.float32), np.zeros((1, 9, 4, 16), np.float32)
    with pytest.raises(ValueError, match=r"k has 9 heads and q has 8; .*turn \(B, S, H, D\) by swapaxes\(1, 2\)"):
        vulkan_backend.attention.flash_attention2(q, k, k)
    k = np.zeros((1, 3, 5, 16), np.float32)
    with pytest.raises(ValueError, match="q's must be a multiple of k's$"):
        vulkan_backend.attention.flash_attention2(q, k, k)


def test_what_pytorch_takes_by_its_place(vulkan_backend):
    mask = np.ones((3, 3), bool)
    for layer, given, word in (
        (nn.TransformerEncoderLayer(4, 2), (X, mask), r"2 arguments .*, and 1 is the most; give mask= \(True = at"),
        (nn.TransformerDecoderLayer(4, 2), (X, X, mask), r"3 arguments .*, and 2 is the most; give mask= and memory_m"),
        (nn.MultiheadAttention(4, 2), (X, X, X, mask), r"4 arguments .*, and 3 is the most; give mask= \(True = atte"),
    ):
        with pytest.raises(TypeError, match=f"{type(layer).__name__}: {word}"):
            layer(*given)
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"):
        nn.Linear(4, 2)(X, X)


def test_activations_by_their_names():
    for given, word in (
        (F.gelu, "gelu"), (nn.ReLU(), "relu"), (nn.SiLU, "silu"), (nn.GELU("tanh"), "gelu_tanh"), (nn.GELU(), "gelu"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"Layer: activation is .*; expected its name: give '{word}'"):
            nn.TransformerEncoderLayer(4, 2, activation=given)
    for other in (np.tanh, "tanh", ["gelu"]):
        with pytest.raises(ValueError, match=r"activation is .*; expected one of \('relu', "):
            nn.TransformerEncoderLayer(4, 2, activation=other)


def test_a_row_of_zeros_to_attend_to(vulkan_backend):
    """What the word for add_zero_attn says."""
    zeros = np.zeros((2, 2, 1, 4), np.float32)
    appended = F.flash_attention2(Q, np.concatenate([K, zeros], 2), np.concatenate([K, zeros], 2))
    found = F.flash_attention2(Q, K, K, sinks=np.zeros(2, np.float32))
    np.testing.assert_allclose(found, appended, rtol=1e-6)


def test_a_cache_that_is_reset_in_a_capture(vulkan_backend):
    cache = nn.KVCache(1, 8, 2, 4, backend=vulkan_backend)
    with pytest.raises(grilly.CaptureError, match=r"KVCache.reset"):
        vulkan_backend.capture(lambda x: (cache.reset(), x + 1)[1], X)
