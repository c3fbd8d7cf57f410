"""Embeddings and their gradients."""

import numpy as np
import pytest

import grilly
import grilly.functional as F
from cases import DTYPES, epsilon
from grilly import nn, reference


def draw(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def ids_of(rows, *shape, dtype=np.int64):
    return np.random.default_rng([rows, *shape]).integers(0, rows, shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, columns", [(1, 1), (50, 7), (37, 12), (300, 64)])
def test_rows_by_id(backend, dtype, rows, columns):
    weight = draw(rows, columns, dtype=dtype)
    for shape, ids_dtype in (((5, 11), np.int64), ((130,), np.int32), ((2, 3, 4), np.uint8)):
        ids = ids_of(min(rows, 255), *shape, dtype=ids_dtype)
        exact = reference.embedding(ids, weight)
        for given in (ids, backend.tensor(ids)):
            found = F.embedding(given, backend.tensor(weight))
            assert found.shape == (*shape, columns) and found.dtype == weight.dtype
            np.testing.assert_array_equal(found.numpy().view(np.uint8), exact.view(np.uint8))


def test_arrays_lists_and_views(vulkan_backend):
    weight, ids = draw(20, 24), ids_of(20, 6, 8)
    found = F.embedding(ids, weight)
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, weight[ids])
    np.testing.assert_array_equal(F.embedding([3, 0], weight), weight[[3, 0]])
    np.testing.assert_array_equal(F.embedding(ids.astype(np.uint64), weight), weight[ids])
    tensor, wide = vulkan_backend.tensor(ids), vulkan_backend.tensor(draw(20, 40))
    for view in (lambda a: a[:, 3:27], lambda a: a[2:, 4:28], lambda a: a[::2, 1:]):
        own = np.ascontiguousarray(view(draw(20, 40)))
        some = ids % len(own)
        np.testing.assert_array_equal(F.embedding(some, view(wide)).numpy(), own[some])
    np.testing.assert_array_equal(F.embedding(tensor.T[1:], weight).numpy(), weight[ids.T[1:]])
    assert F.embedding(np.zeros((0, 3), int), weight).shape == (0, 3, 24)
    assert F.embedding([], weight).shape == (0, 24)


def test_ids_on_the_device_are_not_checked(vulkan_backend):
    weight = draw(5, 4)
    for columns in (4, 3):  # both kernels
        own = np.ascontiguousarray(weight[:, :columns]).astype(np.float16)
        found = F.embedding(vulkan_backend.tensor(np.array([-1, -99, 5, 2**40])), own).numpy()
        np.testing.assert_array_equal(found, own[[4, 0, 4, 4]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, columns, tokens", [(1, 5, 700), (50, 7, 33), (3000, 12, 1100), (40, 520, 513)])
def test_gradients(vulkan_backend, dtype, rows, columns, tokens):
    grad, ids = draw(tokens, columns, dtype=dtype), ids_of(rows, tokens)
    for padding_idx in (None, -1):
        exact = reference.embedding_backward(grad, ids, rows, padding_idx, dtype=np.float64)
        sizes = reference.embedding_backward(np.abs(grad.astype(np.float64)), ids, rows, dtype=np.float64)
        most = np.bincount(ids, minlength=rows).max()
        found = F.embedding_backward(vulkan_backend.tensor(grad), ids, rows, padding_idx).numpy()
        assert found.dtype == grad.dtype and found.shape == exact.shape
        bound = most * 2.0**-24 * sizes + (0 if dtype == np.float32 else epsilon(dtype) * np.abs(exact) + 1e-7)
        assert (np.abs(found.astype(np.float64) - exact) <= bound).all()
        again = F.embedding_backward(grad, vulkan_backend.tensor(ids.astype(np.int32)), rows, padding_idx)
        np.testing.assert_array_equal(again.numpy(), found)


def test_many_tokens_of_one_row(vulkan_backend):
    """More than the loops of some drivers may count in one dispatch."""
    grad = np.full((20_003, 3), 0.1, np.float32)
    found = F.embedding_backward(grad, np.ones(20_003, np.int32), 2)
    assert not found[0].any()
    np.testing.assert_allclose(found[1], 20_003 * np.float64(np.float32(0.1)), rtol=20_003 * 2.0**-24)


def test_gradients_of_views_and_of_nothing(vulkan_backend):
    grad, ids = draw(8, 6, 5), ids_of(9, 6, 8)
    exact = reference.embedding_backward(grad.transpose(1, 0, 2), ids, 9, dtype=np.float64)
    found = F.embedding_backward(vulkan_backend.tensor(grad).transpose(1, 0, 2), ids, 9).numpy()
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5)
    assert (F.embedding_backward(np.zeros((0, 4), np.float32), [], 3) == np.zeros((3, 4))).all()


def test_the_layer(backend):
    layer = nn.Embedding(11, 6, padding_idx=-2, rng=0).to(backend).train()
    assert layer.padding_idx == 9 and not layer.weight.numpy()[9].any()
    assert repr(layer) == "Embedding(11, 6, padding_idx=9)" and list(layer.state_dict()) == ["weight"]
    ids = ids_of(11, 4, 7)
    found = layer(ids)
    np.testing.assert_array_equal(found, layer.weight.numpy()[ids])
    grad = draw(4, 7, 6)
    assert layer.backward(grad) is None
    exact = reference.embedding_backward(grad, ids, 11, 9, dtype=np.float64)
    np.testing.assert_allclose(layer.weight.grad, exact, rtol=0, atol=1e-5)
    with pytest.raises(RuntimeError, match="Embedding.backward: no forward"):
        layer.backward(grad)
    on_device = layer(backend.tensor(ids))
    assert isinstance(on_device, grilly.Tensor)
    np.testing.assert_array_equal(on_device.numpy(), found)


def test_the_sum_of_three_tables_in_a_capture(vulkan_backend):
    """What a model of BERT's kind begins with."""
    words, places, kinds = draw(100, 32), draw(16, 32, seed=1), draw(2, 32, seed=2)
    tables = [vulkan_backend.tensor(table) for table in (words, places, kinds)]

    def begin(ids, types):
        return F.embedding(ids, tables[0]) + tables[1][: ids.shape[1]] + F.embedding(types, tables[2])

    graph = vulkan_backend.capture(begin, ids_of(100, 2, 9), ids_of(2, 2, 9))
    for seed in (1, 2):
        ids, types = ids_of(100, 2, 9) * seed % 100, ids_of(2, 2, 9)
        np.testing.assert_array_equal(graph(ids, types).numpy(), words[ids] + places[:9] + kinds[types])


def test_a_sequence_that_begins_with_ids(vulkan_backend):
    model = nn.Sequential(nn.Embedding(9, 4, rng=0), nn.Linear(4, 3, rng=0)).to(vulkan_backend).train()
    ids = ids_of(9, 5)
    assert isinstance(model(ids), np.ndarray)
    assert model.backward(draw(5, 3)) is None and model[0].weight.grad.any()
    with pytest.raises(IndexError, match="id 9"):
        model([9])


def test_what_is_refused(vulkan_backend):
    weight = draw(5, 4)
    for error, match, call in (
        (IndexError, "input has the id 5; expected 0 to 4", lambda: F.embedding([0, 5], weight)),
        (IndexError, "input has the id -1; expected 0 to 4", lambda: F.embedding(np.array([[0, -1]]), weight)),
        (TypeError, "input is float64; expected integers", lambda: F.embedding([0.5], weight)),
        (TypeError, "input is float32; expected integers",
         lambda: F.embedding(vulkan_backend.tensor(weight), weight)),
        (TypeError, "weight is float64", lambda: F.embedding([0], np.zeros((3, 3)))),
        (ValueError, r"weight has shape \(4,\)", lambda: F.embedding([0], weight[0])),
        (ValueError, "padding_idx is 5; expected a row of 5", lambda: F.embedding([0], weight, 5)),
        (ValueError, r"grad_output has shape \(2, 4\) and input \(3,\)",
         lambda: F.embedding_backward(weight[:2], [0, 1, 2], 5)),
        (IndexError, "embedding_backward: input has the id 7", lambda: F.embedding_backward(weight[:1], [7], 5)),
        (IndexError, "embedding_backward: input has ids, and there are no rows",
         lambda: F.embedding_backward(weight[:1], [0], 0)),
        (IndexError, "embedding: input has ids, and there are no rows", lambda: F.embedding([0], weight[:0])),
        (ValueError, "num_embeddings is -1", lambda: F.embedding_backward(weight[:0], np.zeros(0, int), -1)),
        (ValueError, "num_embeddings is 0", lambda: nn.Embedding(0, 4)),
        (ValueError, "padding_idx is 4", lambda: nn.Embedding(4, 4, 4)),
    ):  # fmt: skip
        with pytest.raises(error, match=match):
            call()
