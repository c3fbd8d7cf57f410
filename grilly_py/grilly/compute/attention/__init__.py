"""Exact attention that stores no scores: forward, its gradients, caches, packed sequences, streaming."""
