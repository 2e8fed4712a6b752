"""The loss of a trained run's weights under any schedule, after a short tuning.

Every question starts from the same checkpoint: what was tuned for one schedule is undone before the
next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prism_transformer.core.errors import InputError
from prism_transformer.data.loader import Windows
from prism_transformer.data.mixture import Mixture
from prism_transformer.model import PrismLM
from prism_transformer.models.reslice import matched, under
from prism_transformer.models.weights import SCHEDULE, WEIGHTS_FILE, load_model, read_tensors
from prism_transformer.recipe import Map
from prism_transformer.schedule import HeadSchedule
from prism_transformer.search.scores import Settings as Asked
from prism_transformer.search.scores import marks
from prism_transformer.training.checkpoint import OPTIMIZER_FILE, newest_model, read_state
from prism_transformer.training.device import Settings, begin, settle
from prism_transformer.training.distributed import World
from prism_transformer.training.job import make_optimizer, open_data
from prism_transformer.training.loop import validation_loss
from prism_transformer.training.objective import Objective, Question, objective_of
from prism_transformer.training.reslicing import MOMENT_POWERS
from prism_transformer.training.run import Run

Tensors = dict[str, Tensor]


def check_tuning(steps: int, rate: float) -> None:
    """Refuse numbers that no tuning can have."""
    if steps < 0:
        raise InputError(f"--steps {steps}: 0 is none, and less means nothing")
    if not 0 < rate <= 1:
        raise InputError(f"--rate {rate}: give a share of the run's learning rate, 0.1 for a tenth")


@dataclass(frozen=True)
class Shared:
    """A run's newest checkpoint with its data, opened to be asked under any schedule."""

    run: Run
    step: int
    model: PrismLM
    weights: Tensors
    moments: Tensors
    train: Windows | Mixture
    val: Windows
    settings: Settings
    objective: Objective
    """what the run was asked in training, and in its own validations"""

    @classmethod
    def open(cls, run: Run | Path | str, device: str = "auto") -> Shared:
        found = Run.open(run)
        checkpoint = newest_model(found.folder)
        settings = begin(settle(found.recipe, device))
        weights = read_tensors(checkpoint / WEIGHTS_FILE)
        weights.pop(SCHEDULE, None)
        moments = read_tensors(checkpoint / OPTIMIZER_FILE)
        model = load_model(checkpoint).to(settings.device)
        step = read_state(checkpoint).step
        data, objective = open_data(found.recipe), objective_of(found.recipe)
        return cls(found, step, model, weights, moments, *data, settings, objective)

    @property
    def facts(self) -> dict[str, Any]:
        """What a file of scores says of the run it comes from."""
        recipe = self.run.recipe
        return {
            "run": self.run.folder.resolve().name, "step": self.step, **marks(recipe),
            "objective": recipe.train.objective, "boundaries": recipe.data.boundaries,
            "recipe": recipe,
        }  # fmt: skip

    def windows(self, asked: int | None) -> int:
        """How many windows of the validation slice are scored: the first ones, all when None."""
        there = self.run.recipe.data.val_tokens // self.run.recipe.model.seq_len
        if asked is not None and not 1 <= asked <= there:
            raise InputError(f"--windows {asked}: the run's validation slice has {there}")
        return asked or there

    def loss(
        self,
        schedule: HeadSchedule,
        asked: Asked,
        *,
        layer: int | None = None,
        how: Map = "reshape",
    ) -> float:
        """Validation loss under a schedule, tuned first for as many steps as asked.

        ``layer`` is the only one to be tuned; all of the model is when left out. ``how`` is the map
        by which weights come from the run's own schedule.
        """
        recipe = self.run.recipe
        world = World(0, 1, self.settings.device, None)
        with self._changed(schedule, how):
            if asked.steps:
                self._tune(schedule, asked, layer, how)
            return validation_loss(
                self.model, self.val, asked.windows, recipe.train.micro_batch, world, self.settings,
                self.objective,
            )  # fmt: skip

    @contextmanager
    def _changed(self, schedule: HeadSchedule, how: Map) -> Iterator[None]:
        """The model under a schedule; afterwards every weight is what it was."""
        weights = self.weights
        if how == "matched":
            weights = matched(weights, self.run.recipe.model, schedule)
        self._fill(weights)
        try:
            with under(self.model, schedule):
                yield
        finally:
            self._fill(self.weights)

    @torch.no_grad()
    def _fill(self, weights: Tensors) -> None:
        for name, weight in self.model.named_parameters():
            weight.copy_(weights[name])

    def _tune(self, schedule: HeadSchedule, asked: Asked, layer: int | None, how: Map) -> None:
        """Take steps with the optimizer's state, on windows that come after the run's last."""
        recipe = self.run.recipe
        part: nn.Module = self.model if layer is None else self.model.layers[layer]
        self.model.requires_grad_(layer is None)
        part.requires_grad_(True)
        optimizer = make_optimizer(part, recipe.optim)
        self._remember(optimizer, schedule, how)
        for group in optimizer.param_groups:
            group["lr"] = asked.rate * recipe.optim.lr
        for step in range(self.step, self.step + asked.steps):
            passes = self._passes(step)
            for question in passes:
                with self.settings.autocast():
                    loss = question.loss(self.model, recipe.model.attention) / len(passes)
                loss.backward()
            nn.utils.clip_grad_norm_(part.parameters(), recipe.optim.grad_clip)
            optimizer.step()
            optimizer.zero_grad()
        self.model.requires_grad_(True)

    def _passes(self, step: int) -> list[Question]:
        """What the run itself would have been asked in a step, pass by pass."""
        train, seq_len = self.run.recipe.train, self.run.recipe.model.seq_len
        n_sequences, size = train.batch_tokens // seq_len, train.micro_batch
        first = step * n_sequences
        asked = (
            self.objective.question(self.train.batch(train.seed, at, size), at, train.seed)
            for at in range(first, first + n_sequences, size)
        )
        return [each.to(self.settings.device) for each in asked]

    def _remember(self, optimizer: torch.optim.AdamW, schedule: HeadSchedule, how: Map) -> None:
        """Give an optimizer the moments that the run's own had."""
        names = {id(weight): name for name, weight in self.model.named_parameters()}
        moments = {}
        for kind, power in MOMENT_POWERS.items():
            own = {name: self.moments[f"{kind}.{name}"] for name in self.weights}
            if how == "matched":
                own = matched(own, self.run.recipe.model, schedule, power)
            moments[kind] = own
        for group in optimizer.param_groups:
            for weight in group["params"]:
                name = names[id(weight)]
                state = {
                    kind: torch.empty_like(weight).copy_(own[name]) for kind, own in moments.items()
                }
                count = torch.tensor(float(self.step), device=weight.device)
                optimizer.state[weight] = {"step": count, **state}
