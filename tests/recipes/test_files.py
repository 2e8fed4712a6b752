from __future__ import annotations

import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_transformer.core.errors import InputError
from prism_transformer.recipe import Recipe
from prism_transformer.recipes.files import (
    SAME_SPEED,
    RecipeError,
    copy_recipe,
    load_recipe,
    packaged_recipes,
    paper_scale,
    recipe_toml,
)
from prism_transformer.schedules import paper
from prism_transformer.training.run import RECIPE_FILE


@pytest.mark.parametrize("name", packaged_recipes())
def test_every_packaged_recipe_loads_and_prints_back(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    file = tmp_path / "again.toml"
    file.write_text(recipe_toml(recipe), "utf-8")
    assert load_recipe(file) == recipe


@pytest.mark.parametrize("scale", paper.scales())
def test_base_recipes_write_out_every_value(scale: str) -> None:
    written = tomllib.loads(packaged_recipes()[f"base/{scale}"].read_text("utf-8"))
    fields = {name: set(f.annotation.model_fields) for name, f in Recipe.model_fields.items()}  # type: ignore[union-attr]
    assert {section: set(keys) for section, keys in written.items()} == fields


@pytest.mark.parametrize("scale", paper.scales())
def test_recipes_say_what_table_1_says(scale: str) -> None:
    row = paper.scales()[scale]
    prism, baseline = load_recipe(f"prism-{scale}"), load_recipe(f"baseline-{scale}")
    assert prism.model.schedule == row.schedule
    assert baseline.model.schedule.heads == (row.h_base,) * row.n_layers
    assert (prism.model.d_model, prism.model.h_base) == (row.d_model, row.h_base)
    assert prism.optim.lr == row.lr
    assert f"{prism.train.tokens / 1e9:.2f}B" == row.tokens
    assert f"{prism.train.batch_tokens / 2**20:.2f}M" == row.batch
    # The pair differs in nothing but the schedule.
    same = prism.model.model_copy(update={"schedule": baseline.model.schedule})
    assert prism.model_copy(update={"model": same}) == baseline


def test_later_wins(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'base = "prism-small"\n[optim]\nlr = 1e-3\nbeta2 = 0.99\n[train]\nseed = 5\n', "utf-8"
    )
    recipe = load_recipe(tmp_path / "mine.toml", ["optim.beta2=0.98", "model.schedule=3x2 12x10"])
    assert (recipe.optim.lr, recipe.optim.beta2, recipe.train.seed) == (1e-3, 0.98, 5)
    assert str(recipe.model.schedule) == "3x2 12x10"
    assert recipe.optim.beta1 == 0.9


def test_base_is_found_beside_the_file_before_the_package(tmp_path: Path) -> None:
    (tmp_path / "prism-small.toml").write_text('base = "base/medium"\n', "utf-8")
    (tmp_path / "mine.toml").write_text('base = "prism-small.toml"\n', "utf-8")
    assert load_recipe(tmp_path / "mine.toml").model.d_model == 1024


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("optim.lrr=1", "'optim.lrr=1': optim.lrr: unknown key; did you mean optim.lr?"),
        ("train.lr=1", "train.lr: unknown key; did you mean optim.lr?"),
        ("zzz.qqq=1", "zzz: unknown key; known: model, data, train, optim"),
        ("optim.lr=fast", "optim.lr = 'fast': Input should be a valid number"),
        ("optim.lr=-1", "optim.lr = -1: Input should be greater than 0"),
        ("optim.lr=nan", "optim.lr = nan: Input should be a finite number"),
        ("train.seed=1.5", "train.seed = 1.5: Input should be a valid integer"),
        ("train.seed=true", "train.seed = True: Input should be a valid integer"),
        (
            "train.precision=fp8",
            "train.precision = 'fp8': Input should be 'auto', 'bf16'",
        ),
        ("model.schedule=5x12", "model: schedule = 5x12: layer 0: 5 heads do not divide"),
        ("model.schedule=smal", "did you mean the preset 'small'?"),
        ("train.batch_tokens=1000", "train.batch_tokens = 1000 is not a multiple"),
        ("train.tokens=10", "train.tokens = 10 is less than train.batch_tokens"),
        ("optim.min_lr_fraction=2", "optim.min_lr_fraction = 2: Input should be less than 1"),
        ("model.schedule=12", "model.schedule = 12: 12 is not a schedule"),
        ("train.tokens=1e9", "write digits only, as in 1_000_000"),
        ("train.activation_checkpointing=True", "write true or false"),
        ("train.seed=99999999999999999999", "train.seed = 99999999999999999999: Input should be"),
        ("optim.lr=" + "9" * 5000, "optim.lr"),
        ("optim.lr=1\nfoo=2", "write section.key=value"),
        ("model.d_model=[[[[", "model.d_model = '[[[['"),
        ("lr=1", "cannot read override 'lr=1'; write optim.lr=1"),
        ("qqq=1", "write section.key=value"),
        ("optim.lr", "write section.key=value"),
        ("", "write section.key=value"),
    ],
)
def test_bad_overrides_name_key_and_remedy(override: str, problem: str) -> None:
    with pytest.raises(RecipeError) as error:
        load_recipe("prism-small", [override])
    assert problem in str(error.value)


def test_every_mistake_is_listed_with_the_file_that_made_it(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('base = "base/small"\n[optim]\nbeta1 = "x"\n', "utf-8")
    mine = tmp_path / "mine.toml"
    mine.write_text('base = "base.toml"\n[train]\nstpes = 3\n', "utf-8")
    with pytest.raises(RecipeError) as error:
        load_recipe(mine)
    lines = str(error.value).splitlines()
    assert len(lines) == 2
    assert f"{tmp_path / 'base.toml'}: optim.beta1 = 'x'" in str(error.value)
    assert f"{mine}: train.stpes: unknown key" in str(error.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[model\n", "not valid TOML"),
        (b"\xff\xfe", "not UTF-8 text at byte 0"),
        (b"base = 3\n", "base = 3 is not the path or name"),
        (b'base = "mine.toml"\n', "is its own base"),
        (b'base = "nowhere.toml"\n', "base: nowhere.toml: no such recipe file"),
        (b"model = 3\n", "model: expected a table, as in [model]"),
        (b"[model]\nd_model = 96\n", "model.schedule: missing; set it, or inherit it"),
        (b"", "model: missing"),
        (b"train.seed = " + b"9" * 5000, "not valid TOML"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(content)
    with pytest.raises(RecipeError) as error:
        load_recipe(file)
    assert problem in str(error.value)
    assert str(file) in str(error.value)


def test_a_rule_between_sections_names_where_each_value_was_set() -> None:
    with pytest.raises(RecipeError) as error:
        load_recipe("prism-small", "model.seq_len=1000")
    assert "model.seq_len: override 'model.seq_len=1000'" in str(error.value)
    assert "small.toml" in str(error.value)


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('base = "prism-small"\n', "utf-8-sig")
    assert load_recipe(file) == load_recipe("prism-small")


def test_a_folder_is_not_called_missing(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="is a folder"):
        load_recipe(tmp_path)


def test_unknown_recipe_suggests_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean 'prism-small'"):
        load_recipe("prism-smal")


@given(st.text())
def test_no_override_raises_anything_but_its_own_error(text: str) -> None:
    with suppress(RecipeError):
        load_recipe("prism-small", [f"model.schedule={text}"])


def test_copying_out_never_overwrites(tmp_path: Path) -> None:
    target = tmp_path / "mine.toml"
    assert copy_recipe("prism-small", target) == target
    assert load_recipe(target) == load_recipe("prism-small")
    target.write_text("precious", "utf-8")
    with pytest.raises(RecipeError, match="exists already"):
        copy_recipe("prism-small", target)
    assert target.read_text("utf-8") == "precious"
    assert copy_recipe("prism-small", tmp_path / "new" / "folder.toml").exists()
    with pytest.raises(InputError, match="cannot be written"):
        copy_recipe("prism-small", target / "inside-a-file.toml")
    with pytest.raises(RecipeError, match="did you mean"):
        copy_recipe("prism-smal", target)


def test_a_run_in_place_of_a_recipe_is_called_that(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    with pytest.raises(RecipeError, match="is a folder, not a recipe file"):
        load_recipe(tmp_path / "first")
    (tmp_path / "first" / RECIPE_FILE).write_text(recipe_toml(load_recipe("prism-nano")), "utf-8")
    with pytest.raises(RecipeError, match=r"is a run already: prism resume .*first continues it"):
        load_recipe(tmp_path / "first")


@pytest.mark.parametrize("scale", paper.SCALES)
@pytest.mark.parametrize("arm", ["baseline", "prism"])
def test_the_papers_recipes_are_at_its_scales(arm: str, scale: str) -> None:
    recipe = load_recipe(f"{arm}-{scale}")
    assert paper_scale(recipe) is paper.scales()[scale]
    assert paper_scale(recipe, SAME_SPEED) is paper.scales()[scale]


@pytest.mark.parametrize(
    ("change", "learns", "runs"),
    [
        ("train.seed=7", True, True),
        ("run.val_every=10", True, True),
        ("data.folder=elsewhere", True, True),
        ("train.micro_batch=8", True, False),
        ("train.precision=fp32", True, False),
        ("model.schedule=2x6 12x6", True, False),
        ("optim.lr=1e-3", False, True),
        ("data.corpus=sotu", False, True),
        ("model.d_ff=4096", False, False),
        ("train.tokens=262144", False, False),
    ],
)
def test_what_is_learnt_and_how_fast_are_two_questions(
    change: str, learns: bool, runs: bool
) -> None:
    recipe = load_recipe("prism-small", change)
    assert (paper_scale(recipe) is not None) == learns
    assert (paper_scale(recipe, SAME_SPEED) is not None) == runs


def test_the_paper_has_no_nano() -> None:
    assert paper_scale(load_recipe("prism-micro")) is None
