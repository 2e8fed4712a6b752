"""A model in use: what it costs, its weights as a folder, sampling, and proof of neutrality.

In comes a ``ModelConfig`` or a ``PrismLM``, out come numbers, files or tokens. Read ``cost.py``
first, it is arithmetic only; ``sampling.py`` has the cache and what makes decoding fast.
"""

# Not in weights.py: reading results takes these names, and no torch.
CONFIG_FILE = "model.json"
WEIGHTS_FILE = "model.safetensors"
