"""Decoding: sampling, beam search, traces and likelihoods for every autoregressive model."""
