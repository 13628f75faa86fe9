"""`keel bias`: pronouns and occupations, by language model heads and word vectors (`pronoun_scores`), by attention
(`pronoun_attention`) and by association tests (`word_associations`); `bias_report` is the result of all."""
