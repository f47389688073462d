"""Layers of K clients, each with its own parameters, as Triton kernels for NVIDIA GPUs.

Triton comes with the CUDA builds of torch.  Nothing imports these modules but the executor
``triton``, when it computes a layer; only ``blocks`` needs no Triton.
"""
