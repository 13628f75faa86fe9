"""Fixtures of a tiny task, shared by the folders that test parts of one."""

from tests.tiny_task import make_sentences, make_task, reviews, tokenizer

__all__ = ["make_sentences", "make_task", "reviews", "tokenizer"]
