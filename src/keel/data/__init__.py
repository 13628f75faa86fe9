"""Corpora, tokenizers, the token store, readers of labelled files, sampling and collation."""
