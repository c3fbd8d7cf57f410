"""Arrays that compute, by the Python array API standard: elementwise, reductions, indexing, shapes."""
