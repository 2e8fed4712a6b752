"""Several corpora with weights: counts in closed form, each window once an epoch, no state."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_transformer.core.errors import InputError
from prism_transformer.data.loader import Windows
from prism_transformer.data.mixture import (
    ROUND,
    Mixture,
    draw,
    drawn,
    open_splits,
    quotas,
)
from prism_transformer.data.prepare import Preparation, prepare
from prism_transformer.recipe import Part, Recipe
from prism_transformer.recipes.files import load_recipe
from tests.data.test_foreign import by_datatrove
from tests.data.test_loader import write_shards

WEIGHTS = st.lists(st.floats(0.05, 20), min_size=1, max_size=6)


def parts(*weights: float) -> list[Part]:
    return [Part(folder=f"data/{n}", weight=weight) for n, weight in enumerate(weights)]


@given(WEIGHTS)
def test_shares_are_whole_and_nearest(weights: list[float]) -> None:
    found = quotas(parts(*weights))
    assert sum(found) == ROUND
    for share, weight in zip(found, weights, strict=True):
        assert abs(share - ROUND * weight / sum(weights)) < 1


def test_what_is_written_in_thousandths_is_exact() -> None:
    assert quotas(parts(0.7, 0.2, 0.1)) == [700, 200, 100]
    assert quotas(parts(70, 20, 10)) == [700, 200, 100]
    assert quotas(parts(0.125, 0.875)) == [125, 875]
    assert quotas(parts(1, 1, 1)) == [334, 333, 333]
    assert quotas(parts(5)) == [1000]


@settings(deadline=None, max_examples=15)
@given(WEIGHTS, st.integers(0, 2**63 - 1), st.integers(0, 10**9), st.integers(0, 2 * ROUND))
def test_every_round_holds_every_draw_of_every_corpus_once(
    weights: list[float], seed: int, turn: int, more: int
) -> None:
    shares = quotas(parts(*weights))
    first = turn * ROUND
    found = [draw(shares, seed, first + place) for place in range(ROUND)]
    for part, share in enumerate(shares):
        numbers = sorted(each.number for each in found if each.part == part)
        assert numbers == list(range(turn * share, (turn + 1) * share))
    counted = [0] * len(shares)
    for index in range(more):
        counted[draw(shares, seed, index).part] += 1
    assert drawn(shares, seed, more) == counted


def test_a_run_has_its_shares_soon_and_seeds_differ() -> None:
    shares = [500, 300, 200]
    firsts = {}
    for seed in range(20):
        counts = np.array(drawn(shares, seed, 400))
        # 400 drawn of 1,000 without putting back: 8 windows of standard deviation at most.
        assert (np.abs(counts - 0.4 * np.array(shares)) < 40).all()
        firsts[seed] = tuple(draw(shares, seed, index) for index in range(30))
    assert len(set(firsts.values())) == 20
    # Rounds are not alike either.
    turns = {tuple(draw(shares, 0, t * ROUND + i).part for i in range(50)) for t in range(20)}
    assert len(turns) == 20


def mixed(folder: Path) -> Mixture:
    """Two corpora of 40 and 99 windows, told apart by their tokens."""
    for name in ("a", "b"):
        (folder / name).mkdir(exist_ok=True)
    low = Windows(write_shards(folder / "a", [300, 101]), 10, 1000)
    high = Windows(write_shards(folder / "b", [991]), 10, 1000)
    return Mixture([low, high], [250, 750])


def test_windows_come_from_the_corpora_and_once_an_epoch(tmp_path: Path) -> None:
    mixture = mixed(tmp_path)
    low, high = mixture.parts
    rows = mixture.batch(3, 0, 4 * ROUND)
    assert rows.shape == (4000, 11)
    by_part = {0: low, 1: high}
    seen: dict[int, list[int]] = {0: [], 1: []}
    for index, row in enumerate(rows):
        part, number = draw(mixture.shares, 3, index)
        assert np.array_equal(row, by_part[part].batch(3, number, 1)[0])
        seen[part].append(int(row[0]) // 10)
    # 1,000 windows of a corpus of 40 are 25 epochs; 3,000 of one of 99 are 30 and a part of one.
    assert (np.bincount(seen[0]) == 25).all()
    assert set(np.bincount(seen[1])) == {30, 31}
    assert mixture.lengths == [300, 101, 991]
    assert mixture.names == ["0:train_000000.bin", "0:train_000001.bin", "1:train_000000.bin"]
    assert len(mixture) == 40 + 99


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_processes_and_restarts_share_one_sequence(tmp_path: Path, world: int) -> None:
    expected = mixed(tmp_path).batch(5, 990, 24)  # across two rounds
    share, found = 24 // world, []
    for rank in range(world):
        own = mixed(tmp_path)  # a process that has just begun knows nothing but the step
        found.append(own.batch(5, 990 + rank * share, share))
    assert np.array_equal(np.concatenate(found), expected)


def test_another_process_draws_the_same() -> None:
    code = (
        "from prism_transformer.data.mixture import draw\n"
        "print([tuple(draw([601, 399], 7, index)) for index in range(2500)])"
    )
    for salt in ("1", "2"):
        line, salted = [sys.executable, "-c", code], {**os.environ, "PYTHONHASHSEED": salt}
        done = subprocess.run(line, capture_output=True, text=True, env=salted)
        own = [tuple(draw([601, 399], 7, index)) for index in range(2500)]
        assert done.stdout.strip() == str(own), done.stderr


# -- recipes -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three corpora in bytes, one with another tokenizer, one that is too small."""
    home = tmp_path_factory.mktemp("corpora")
    texts = {"web": "the web says this. ", "code": "x = f(x)\n", "books": "Call me something. "}
    for name, text in texts.items():
        (home / f"{name}.txt").write_text(text * 400, "utf-8")
        prepare(Preparation(str(home / f"{name}.txt"), "bytes", home / name, 640, like=None))
    (home / "small.txt").write_text("few words, in all. " * 2, "utf-8")
    prepare(Preparation(str(home / "small.txt"), "bytes", home / "small", 16, like=None))
    for name in ("web", "code"):
        out = home / f"{name}-bpe"
        prepare(Preparation(str(home / f"{name}.txt"), "bpe:270", out, 128, like=None))
    prepare(Preparation(str(home / "web.txt"), "bytes", home / "web-again", 64, like=None))
    return home


def recipe(corpora: Path, *folders: str, more: tuple[str, ...] = ()) -> Recipe:
    named = ", ".join(f'{{folder="{corpora / name}", weight=1}}' for name in folders)
    return load_recipe("prism-micro", [
        "model.vocab_size=257", "model.seq_len=32", "data.tokenizer=bytes", "data.val_tokens=640",
        "train.batch_tokens=512", "train.micro_batch=4", "train.tokens=10240",
        f"data.folder={corpora / 'web'}", f"data.mixture=[{named}]", *more,
    ])  # fmt: skip


def test_a_recipe_opens_its_mixture_and_validates_on_its_folder(corpora: Path) -> None:
    train, val = open_splits(recipe(corpora, "code", "books"))
    assert isinstance(train, Mixture)
    assert [part.files[0].parent.name for part in train.parts] == ["code", "books"]
    assert val.files[0].parent.name == "web"
    text = bytes(train.batch(0, 0, 40).astype(np.uint8).reshape(-1))
    assert b"Call me" in text
    assert b"= f(x)" in text
    assert b"web says" not in text
    assert isinstance(open_splits(recipe(corpora))[0], Windows)  # nothing is mixed
    # The folder itself may take part: its training split, never the slice.
    own, _ = open_splits(recipe(corpora, "web", "code"))
    assert isinstance(own, Mixture)
    assert own.parts[0].files != val.files


@pytest.mark.parametrize(
    ("folders", "said"),
    [
        (("code", "nothing"), r"data\.mixture: .*nothing: no shards there; `prism prepare"),
        (("code", "small"), "hold no window of 32"),
        (("code", "code-bpe"), "were made with tokenizer bpe:270, the recipe says bytes"),
        (("code", "web-again"), "was made of the same corpus as .*web, which is validated on"),
    ],
)
def test_what_cannot_be_mixed_is_refused(
    corpora: Path, folders: tuple[str, ...], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        open_splits(recipe(corpora, *folders))


def test_two_trained_tokenizers_of_one_name_are_two(corpora: Path) -> None:
    more = ("data.tokenizer=bpe:270", f"data.folder={corpora / 'web-bpe'}", "data.val_tokens=128")
    found = recipe(corpora, "web-bpe", "code-bpe", more=(*more, "model.vocab_size=270"))
    with pytest.raises(
        InputError, match=r"code-bpe: its bpe:270 is another than that of .*web-bpe"
    ):
        open_splits(found)


def test_token_files_of_other_tools_may_have_the_same_names(tmp_path: Path) -> None:
    for name in ("a", "b"):
        source = by_datatrove(tmp_path / f"{name}-tokens").parent
        prepare(Preparation(str(source), "bytes", tmp_path / name, val_tokens=16, like=None))
    source = tmp_path / "a-tokens"
    prepare(Preparation(str(source), "bytes", tmp_path / "again", val_tokens=16, like=None))
    small = ("model.seq_len=8", "train.batch_tokens=32", "data.val_tokens=16")
    more = (*small, f"data.folder={tmp_path / 'a'}")
    train, _ = open_splits(recipe(tmp_path, "a", "b", more=more))
    assert isinstance(train, Mixture)
    assert len(train.batch(0, 0, 20)) == 20
    with pytest.raises(InputError, match="again: was made of the same corpus as"):
        open_splits(recipe(tmp_path, "b", "again", more=more))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('[{folder="a", weight=0}]', r"data\.mixture\.0\.weight = 0: .*greater than 0"),
        ('[{folder="b", weight=1}, {folder="a", weight=-1}]', r"data\.mixture\.1\.weight = -1:"),
        ('[{folder="a", weight=nan}]', r"data\.mixture\.0\.weight = nan: .*finite"),
        ('[{folder="a"}]', r"data\.mixture\.0\.weight: missing"),
        ('[{folder="a", weight=1, wieght=2}]', r"data\.mixture\.0\.wieght: unknown key"),
        ('[{folder="a", weight=1}, {folder="a", weight=2}]', "names 'a' twice"),
        ("0.5", "data.mixture"),
    ],
)
def test_a_mixture_that_is_none_is_refused(written: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_recipe("prism-micro", f"data.mixture={written}")


def test_a_share_below_one_window_is_refused(corpora: Path) -> None:
    named = f'{{folder="{corpora / "code"}", weight=1}}, {{folder="x", weight=1e-5}}'
    with pytest.raises(InputError, match=r"x: weight 1e-05 of 1.00001 is less than one window"):
        open_splits(recipe(corpora, more=(f"data.mixture=[{named}]",)))
