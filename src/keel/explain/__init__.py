"""What a trained model knows, shown. Each function returns a typed object with `lines()` for a terminal and `to_dict()`
for JSON; `api/` joins it with its figure of `report/`.

| command | here |
|---|---|
| `keel attention` | `attention_weights`, with the inputs of `attention_inputs` |
| `keel trace` | `trace/model_tracing` |
| `keel explain` | `attributions/word_attributions` |
| `keel layers` | `layers/layer_weights` (scalar mixes), `layers/layer_probing` (with `--train`) |
| `keel retrieval` | `sentence_retrieval` |
| `keel bias` | `bias/pronoun_scores`, `bias/pronoun_attention`, `bias/word_associations` (WEAT) |
| `keel figure input`, `keel figure units` | `input_view`, `unit_view` |
| `keel nearest`, `analogy`, `odd` | `nearest_neighbors`, with the index of `approximate_search` |
| `keel map`, `keel clusters` | `vector_map`, `projection`, `text_clusters` |
| `keel senses` | `word_senses` |
| `keel translate` | `word_alignment` |
| `keel evaluate` | `perplexity`, `zero_shot`, `vector_benchmarks` |
| `keel generate --trace` | `decoding_steps` |
"""
