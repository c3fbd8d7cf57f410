"""CUDA's and HIP's side of memory that is shared with them: drivers' functions, the order of work, tensors by DLPack.

Nothing here imports PyTorch, and nothing is loaded before somebody asks to share (grilly.torch does).
"""
