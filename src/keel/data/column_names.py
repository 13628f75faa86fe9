"""Usual names of the columns of labelled tables, in the order in which they are tried."""

import re

TEXTS = ("text", "sentence", "review", "content", "comment", "document", "body", "title", "text_a", "text1",
         "sentence1", "premise", "question1", "question", "query")  # fmt: skip
PAIRS = (("text_a", "text_b"), ("text1", "text2"), ("sentence1", "sentence2"), ("sentence_a", "sentence_b"),
         ("premise", "hypothesis"), ("question1", "question2"), ("question", "sentence"), ("query", "passage"),
         ("#1 string", "#2 string"), ("first", "second"))  # fmt: skip
LABELS = ("label", "labels", "score", "target", "class", "category", "quality", "sentiment", "gold_label", "intent",
          "similarity", "relevance", "is_duplicate")  # fmt: skip
SOURCE_TARGET_PAIRS = (("source", "target"), ("input", "output"), ("document", "summary"), ("article", "highlights"),
                       ("text", "summary"), *PAIRS)  # fmt: skip
NUMBERING = re.compile(r"|(.*[ _])?(id|idx|index|guid)|pairid|unnamed.*")
KNOWN_COLUMNS = {*TEXTS, *LABELS, "id", "index", *(name for pair in SOURCE_TARGET_PAIRS for name in pair)}
