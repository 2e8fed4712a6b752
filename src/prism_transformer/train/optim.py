"""AdamW and its learning rate."""

from __future__ import annotations

import math

import torch
from torch import nn

from prism_transformer.recipe import OptimConfig, Recipe


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only."""
    weights = list(model.parameters())
    groups = [
        {"params": [w for w in weights if w.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True)


def learning_rate(recipe: Recipe, step: int) -> float:
    """The rate of update number ``step``, from 0: linear warmup, then a cosine to the minimum."""
    optim, warmup = recipe.optim, recipe.warmup_steps
    if step < warmup:
        return optim.lr * (step + 1) / (warmup + 1)
    progress = (step - warmup) / (recipe.n_steps - warmup)
    lowest = optim.lr * optim.min_lr_fraction
    return lowest + (optim.lr - lowest) * (1 + math.cos(math.pi * progress)) / 2
