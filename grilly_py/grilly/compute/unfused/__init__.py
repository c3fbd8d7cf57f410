"""Attention step by step, with the scores stored."""
