"""Kernels with their specification beside them: Pallas implementations and plain XLA references.

Usable on its own; imports jax, never jaxinfer.
"""
