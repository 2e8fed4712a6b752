"""Recipes: everything that defines one run, typed and frozen, and the numbers it implies.

Its sections are ``model``, ``data``, ``train``, ``optim`` and ``run``; ``recipes/files.py`` reads
them from TOML.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    PlainSerializer,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from prism_transformer.core.section import Section
from prism_transformer.schedule import HeadSchedule, ScheduleError, head_counts
from prism_transformer.schedules.paper import resolve
from prism_transformer.schedules.space import Sampling

VOCAB_MULTIPLE = 128
MLP_MULTIPLE = 16
ROPE_BASE = 10_000.0

RopeFrequencies = Literal["per-width", "tiled", "split"]
AttentionScale = Literal["per-width", "base"]
AttentionKind = Literal["causal", "bidirectional"]
Norm = Literal["rmsnorm", "layernorm"]
Objective = Literal["next", "masked"]
Boundaries = Literal["cross", "isolate"]
Precision = Literal["auto", "bf16", "fp32", "fp64"]
Compile = Literal["auto", "on", "off"]
Distribution = Literal["ddp", "fully_shard", "hybrid_shard"]
RateSchedule = Literal["cosine", "constant", "wsd"]
Tracker = Literal["tensorboard", "wandb", "trackio"]
Map = Literal["reshape", "matched"]
"""How weights come under another schedule: as they are, or with the least change of function."""


def _read_schedule(value: Any) -> HeadSchedule:
    if isinstance(value, HeadSchedule):
        return value
    return resolve(value) if isinstance(value, str) else HeadSchedule.parse(value)


def _read_sampling(value: Any) -> Sampling | None:
    if value is None or isinstance(value, Sampling):
        return value
    if not isinstance(value, str):
        raise ScheduleError(f"{value!r} is not text, as in 'sandwich 1/2/4x8'")
    return Sampling.parse(value) if value else None


Schedule = Annotated[HeadSchedule, BeforeValidator(_read_schedule), PlainSerializer(str)]
ScheduleSampling = Annotated[
    Sampling | None,
    BeforeValidator(_read_sampling),
    PlainSerializer(lambda value: "" if value is None else str(value)),  # TOML knows no null
]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
OpenShare = Annotated[float, Field(gt=0.0, lt=1.0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


def swiglu_width(d_model: int) -> int:
    """8/3 of the model's width, as many parameters as a plain MLP of 4, rounded up to tiles."""
    return -(-8 * d_model // (3 * MLP_MULTIPLE)) * MLP_MULTIPLE


class ModelConfig(Section):
    """The architecture. The schedule is the only field in which Prism and its twin differ."""

    schedule: Schedule
    """heads per layer, first layer first; the number of layers is its length"""
    d_model: PositiveInt
    h_base: PositiveInt = Field(default_factory=lambda known: max(known["schedule"]))
    """head count of the uniform twin; left out, the largest of the schedule"""
    d_ff: PositiveInt = Field(default_factory=lambda known: swiglu_width(known["d_model"]))
    """inner width of SwiGLU; left out, 8/3 of ``d_model`` in whole multiples of 16"""
    vocab_size: PositiveInt = 50257
    """tokens of the tokenizer"""
    seq_len: PositiveInt = 1024
    """context in tokens"""
    attention: AttentionKind = "causal"
    """``bidirectional`` is an encoder: every position sees all, for ``train.objective = "masked"``;
    its last token is the mask, one more than its tokenizer has"""
    queries_per_kv: PositiveInt = 1
    """queries that share one key-value head: 1 is multi-head, more is grouped-query attention"""
    tied_embeddings: bool = True
    """one matrix embeds tokens and scores them; ``false`` gives the scores a matrix of their own"""
    rope_base: PositiveFloat = ROPE_BASE
    rope_frequencies: RopeFrequencies = "per-width"
    """controls: ``tiled`` repeats the base width's frequencies across a wide head, ``split`` shares
    a wide head's out among narrow ones"""
    attention_scale: AttentionScale = "per-width"
    """``base``, a control: logits of every width move as fast as those of the base width"""
    norm: Norm = "rmsnorm"
    """``layernorm`` is the other reading of the paper, without biases like everything else"""
    norm_eps: PositiveFloat = 1e-5
    init_std: PositiveFloat = 0.02

    @model_validator(mode="after")
    def _layers_fit(self) -> Self:
        try:
            self.schedule.head_dims(self.d_model)
        except ScheduleError as error:
            raise ScheduleError(f"schedule = {self.schedule}: {error}") from None
        if self.h_base not in head_counts(self.d_model):
            raise ScheduleError(
                f"h_base = {self.h_base}: does not split d_model={self.d_model} into heads of "
                f"even width; these do: {', '.join(map(str, head_counts(self.d_model)))}"
            )
        for layer, n_heads in enumerate(self.schedule.heads):
            if n_heads % self.queries_per_kv:
                raise ScheduleError(
                    f"queries_per_kv = {self.queries_per_kv}: layer {layer} has {n_heads} heads; "
                    "the queries that share a key-value head must divide every layer's count"
                )
        return self

    @property
    def n_layers(self) -> int:
        return len(self.schedule)

    @property
    def head_dims(self) -> tuple[int, ...]:
        return self.schedule.head_dims(self.d_model)

    @property
    def mask_token(self) -> int:
        """What stands in a bidirectional model's text for a token that it is to find: the last."""
        return self.vocab_size - 1

    @property
    def base_width(self) -> int:
        """Head width of the uniform twin."""
        return self.d_model // self.h_base

    @property
    def d_kv(self) -> int:
        """Width of all keys of one position; the schedule does not change it."""
        return self.d_model // self.queries_per_kv

    @property
    def vocab_rows(self) -> int:
        """Rows of the embedding: the vocabulary padded to whole matmul tiles."""
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


class Part(Section):
    """A corpus of a mixture."""

    folder: str
    """of its shards"""
    weight: PositiveFloat
    """its share of the training windows, in parts of all weights"""


class DataConfig(Section):
    """What to train on; ``prism prepare --recipe`` makes its folder."""

    corpus: str
    """as ``prism prepare`` takes it: sotu, a path or glob, hf:owner/dataset:config"""
    tokenizer: str
    """gpt2, bytes, or bpe:N"""
    folder: str
    """where the shards are"""
    val_tokens: PositiveInt
    """scored in validation, every token once"""
    boundaries: Boundaries = "cross"
    """``isolate``: no token attends across the beginning of its document, where positions count
    from 0; ``cross``: a window is one text, as the paper has it"""
    mixture: list[Part] = Field(default=[])
    """corpora to train on, drawn by weight, as in ``[{folder = "data/web", weight = 0.7}, ...]``;
    validation stays that of ``folder``, which trains only if it is named here, too"""

    @model_validator(mode="after")
    def _corpora_differ(self) -> Self:
        folders = [part.folder for part in self.mixture]
        if twice := [folder for folder in folders if folders.count(folder) > 1]:
            raise ValueError(f"mixture names {twice[0]!r} twice; add its weights up")
        return self

    @property
    def trained_on(self) -> str:
        """Its corpus, or the mixture with its shares."""
        total = sum(part.weight for part in self.mixture)
        shares = (f"{part.folder} ({part.weight / total:.1%})" for part in self.mixture)
        return ", ".join(shares) or self.corpus


class TrainConfig(Section):
    """How much to train, and in what pieces. Sizes are in tokens unless they say sequences."""

    tokens: PositiveInt
    batch_tokens: PositiveInt
    """tokens per optimizer step over all devices"""
    micro_batch: PositiveInt
    """sequences per device and pass; gradient accumulation is derived"""
    objective: Objective = "next"
    """``next`` token; or ``masked`` tokens, of a bidirectional model"""
    mask_share: OpenShare = 0.15
    """of each window's tokens that are to be found, rounded to whole tokens; these three are of the
    objective ``masked`` only"""
    mask_replaced: Share = 0.8
    """of those, the share that the mask token stands for"""
    mask_random: Share = 0.1
    """of those, the share that any other token stands for; the rest stand for themselves"""
    precision: Precision = "auto"
    """``bf16`` is mixed: float32 weights and optimizer, bfloat16 matmuls; ``auto`` is that on GPUs
    with units for it and float32 elsewhere; ``fp64`` is for checks"""
    compile: Compile = "auto"
    """compile the layers; ``auto`` where it pays"""
    distribution: Distribution = "ddp"
    """``fully_shard`` splits weights and optimizer over devices, for models that outgrow one;
    ``hybrid_shard`` within each machine only, with a copy on every machine"""
    activation_checkpointing: bool = False
    """recompute each layer in the backward pass: less memory, a third more time"""
    schedule_sampling: ScheduleSampling = None
    """a schedule for every step, drawn from a space, as in ``sandwich 1/2/4x8`` or ``layers
    1/2/4x8``: one set of weights for all of them; empty for the model's own in every step"""
    seed: Seed = 0


class OptimConfig(Section):
    """AdamW, and its learning rate over the run: linear warmup, then one of three schedules."""

    lr: PositiveFloat
    lr_schedule: RateSchedule = "cosine"
    """after warmup: a ``cosine`` to the end; ``constant``; or ``wsd`` (warmup, stable, decay):
    constant, then a straight line down over the last tokens"""
    min_lr_fraction: Fraction = 0.1
    """where the cosine or the decay ends, as a share of ``lr``"""
    warmup_fraction: Fraction = 0.025
    """share of the training tokens"""
    decay_fraction: Fraction = 0.2
    """share of the training tokens, the last ones; of ``wsd`` only"""
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.1
    """on matrices only"""
    grad_clip: PositiveFloat = 1.0

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.lr_schedule == "wsd" and self.warmup_fraction + self.decay_fraction > 1:
            raise ValueError(
                f"warmup_fraction = {self.warmup_fraction} and decay_fraction = "
                f"{self.decay_fraction} are more than the whole run; lower one"
            )
        return self


class RunConfig(Section):
    """How a run is watched and saved; nothing here changes what is learnt."""

    val_every: PositiveInt = 250
    """steps between validations; the first and the last are always there"""
    checkpoint_every: PositiveInt = 1000
    """steps"""
    keep_checkpoints: PositiveInt = 2
    """the newest so many stay"""
    milestones: list[PositiveInt] = Field(default=[])
    """steps whose checkpoint is saved, too, and stays"""
    attention_every: PositiveInt = 250
    """steps between looks at each layer's largest attention logit"""
    trackers: list[Tracker] = Field(default=[])
    """where else to send metrics; none is needed"""
    project: str = "prism-transformer"
    """of wandb and trackio"""
    entity: str = ""
    """team or user of wandb; your own when left out"""
    group: str = ""
    """of runs that belong together, in wandb and trackio"""


class Recipe(Section):
    """One run."""

    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    optim: OptimConfig
    run: RunConfig = RunConfig()

    @model_validator(mode="after")
    def _batches_fit(self) -> Self:
        train, seq_len, val_tokens = self.train, self.model.seq_len, self.data.val_tokens
        step = f"train.batch_tokens = {train.batch_tokens}"
        if train.batch_tokens % self._pass_tokens:
            raise ValueError(
                f"{step} is not a multiple of train.micro_batch x model.seq_len = "
                f"{train.micro_batch} x {seq_len}; change one of the three"
            )
        if train.tokens < train.batch_tokens:
            raise ValueError(f"train.tokens = {train.tokens} is less than {step}, one step")
        if val_tokens % seq_len:
            raise ValueError(
                f"data.val_tokens = {val_tokens} is not a multiple of model.seq_len = {seq_len}; "
                "validation scores whole windows"
            )
        self._check_objective()
        return self

    @model_validator(mode="after")
    def _space_fits(self) -> Self:
        sampling, model = self.train.schedule_sampling, self.model
        if sampling is not None:
            try:
                sampling.space.check(model.d_model, model.n_layers, model.queries_per_kv)
                sampling.space.expect(model.schedule)
            except ScheduleError as error:
                raise ValueError(f"train.schedule_sampling = {str(sampling)!r}: {error}") from None
        return self

    def _check_objective(self) -> None:
        """A model that sees what follows is not asked for it, and one that does not is."""
        train, attention = self.train, self.model.attention
        needed = "bidirectional" if train.objective == "masked" else "causal"
        if attention != needed:
            raise ValueError(
                f'train.objective = "{train.objective}" needs model.attention = "{needed}", not '
                f'"{attention}"; change one of the two'
            )
        if train.objective == "next":
            return
        if train.mask_replaced + train.mask_random > 1:
            raise ValueError(
                f"train.mask_replaced = {train.mask_replaced} and train.mask_random = "
                f"{train.mask_random} are more than all masked tokens; lower one"
            )
        if not self.masked_tokens:
            raise ValueError(
                f"train.mask_share = {train.mask_share} is not one token of model.seq_len = "
                f"{self.model.seq_len}; raise one of the two"
            )

    @property
    def n_steps(self) -> int:
        """Optimizer steps: as many whole batches as the token budget holds."""
        return self.train.tokens // self.train.batch_tokens

    @property
    def masked_tokens(self) -> int:
        """Of each window, under the objective ``masked``."""
        return round(self.train.mask_share * self.model.seq_len)

    @property
    def warmup_steps(self) -> int:
        return round(self.optim.warmup_fraction * self.n_steps)

    @property
    def stable_until(self) -> int:
        """The step at which the decay of ``wsd`` begins: the last one at the full rate."""
        return max(
            self.warmup_steps, self.n_steps - round(self.optim.decay_fraction * self.n_steps)
        )

    def schedule_at(self, step: int) -> HeadSchedule:
        """What the model is trained under in update number ``step``, from 0."""
        sampling = self.train.schedule_sampling
        return sampling.schedule(self.train.seed, step) if sampling else self.model.schedule

    def accumulation(self, n_devices: int) -> int | None:
        """Passes per optimizer step on each device; None where the batch does not split evenly."""
        passes, rest = divmod(self.train.batch_tokens, self._pass_tokens * n_devices)
        return None if rest else passes

    @property
    def _pass_tokens(self) -> int:
        return self.train.micro_batch * self.model.seq_len


def differences(before: Recipe, after: Recipe) -> list[str]:
    """Every value that is not the same in two recipes: ``optim.lr: 0.001 -> 0.002``."""
    old, new = before.model_dump(), after.model_dump()
    return [
        f"{section}.{key}: {value} -> {new[section][key]}"
        for section, keys in old.items()
        for key, value in keys.items()
        if value != new[section][key]
    ]
