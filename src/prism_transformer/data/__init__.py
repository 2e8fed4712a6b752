"""From text to batches: corpora, tokenizers, shards, preparation, loading."""
