"""What a model knows: zero-shot tasks through lm_eval, and the loss on text."""
