"""Matrix products: linear layers, and the batched products of unfused attention."""
