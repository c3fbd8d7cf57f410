"""CUDA's side of memory that is shared with it: the driver's functions, the order of work, tensors by DLPack.

Nothing here imports PyTorch, and nothing is loaded before somebody asks to share (grilly.torch does).
"""
