"""From text to batches.

In comes text (``corpora.py``) and a tokenizer (``tokenizer.py``); ``prepare.py``, to be read first,
makes shards of it through ``stream.py``, in the format of ``shards.py``, with a manifest; out come
windows of tokens in a fixed order (``loader.py``).
"""
