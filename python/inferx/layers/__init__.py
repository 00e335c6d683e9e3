"""Layers over inferx.ops.

Inference only: weights are packed once at load and are not ``torch.nn.Parameter``, so layers are plain
callables (a decode step calls some 200 of them, and a module call alone costs as much as a small op).
"""
