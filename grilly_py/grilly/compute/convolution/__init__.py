"""Convolutions: matrix products of their windows (im2col), or a direct kernel for few channels."""
