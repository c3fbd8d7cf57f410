"""Normalisations and softmax over rows, with gradients."""
