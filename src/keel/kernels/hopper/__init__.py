"""Kernels for NVIDIA Hopper GPUs (compute capability 9), in Gluon, Triton's lower-level language.

Optional and faster than the general kernels, with the same results. KEEL_HOPPER_KERNELS=0 in the environment turns them
off. Each one is compared with its eager twin before its first use on a GPU, and not used if it differs.
"""
