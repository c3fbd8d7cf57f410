"""Convolutions: their windows as a matrix, and products of it."""
