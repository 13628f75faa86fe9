"""Kernels for NVIDIA Hopper GPUs, in Gluon."""
