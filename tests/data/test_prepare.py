"""Preparation from Python; ``tests/cli/test_prepare.py`` has it as a command, killed, starved."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from prism_transformer.core.disk import locked
from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Advance, Event, Note, Tell
from prism_transformer.data.prepare import Preparation, ensure_prepared, prepare, verify_shards
from prism_transformer.data.shards import read_manifest
from prism_transformer.recipe import Recipe
from prism_transformer.recipes.files import load_recipe
from tests.data.test_stream import hashes, stream, write_jsonl


def recipe_of(corpus: str, folder: Path, tokens: int = 2048) -> Recipe:
    """A small model on bytes; its run is never trained here."""
    changes = {"data.corpus": corpus, "data.tokenizer": "bytes", "data.folder": str(folder)}
    changes |= {"data.val_tokens": "512", "train.tokens": str(tokens), "model.seq_len": "128"}
    changes |= {"train.batch_tokens": "512", "train.micro_batch": "1"}
    return load_recipe("prism-micro", [f"{key}={value}" for key, value in changes.items()])


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    """Forty documents of 99 bytes: 100 tokens each."""
    return write_jsonl(tmp_path / "c.jsonl", ["x" * 99] * 40)


def test_a_recipe_is_prepared_and_says_its_epochs(corpus: str, tmp_path: Path) -> None:
    events: list[Event] = []
    done = prepare(recipe_of(corpus, tmp_path / "out", tokens=6_800), tell=events.append)
    assert done.folder == tmp_path / "out"
    # Validation scores 512 and so takes six documents of a hundred; the other 34 train.
    assert done.table.plain_rows() == [
        {"split": "val", "tokens": 600, "documents": 6, "shards": 1},
        {"split": "train", "tokens": 3400, "documents": 34, "shards": 1},
    ]
    assert done.epochs == 2.0
    assert "3,400" in str(done)
    assert ">3,400</td>" in done._repr_html_()
    counts = [event.done for event in events if isinstance(event, Advance)]
    assert counts == sorted(counts)
    assert counts[-1] == 40 * 99
    assert isinstance(events[-1], Advance)
    assert events[-1].done == events[-1].total


def test_the_hub_is_read_no_further_than_the_budget() -> None:
    here, hub = (
        Preparation.of(recipe_of(corpus, Path("out"))) for corpus in ("sotu", "hf:owner/name")
    )
    assert (here.train_tokens, hub.train_tokens) == (None, 2048)
    assert here.budget == hub.budget == 2048


@pytest.mark.parametrize(
    ("corpus", "folder"),
    [
        ("sotu", "data/sotu"),
        ("some/where/books.jsonl.gz", "data/books"),
        ("hf:HuggingFaceFW/fineweb:sample-10BT", "data/fineweb-sample-10BT"),
        ("texts", "data/texts"),
        ("texts/*.txt", "data/texts"),
        (["texts/a.txt", "texts/b.txt"], "data/texts"),
        ("data/own", "data/own-tokens"),
    ],
)
def test_a_folder_follows_from_the_corpus(
    corpus: str | list[str], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for each in ("texts", "data/own"):
        (tmp_path / each).mkdir(parents=True)
    assert Preparation(corpus).place == Path(folder)
    assert Preparation(corpus, folder=Path("mine")).place == Path("mine")


def test_what_is_complete_is_said_and_left_alone(corpus: str, tmp_path: Path) -> None:
    what = Preparation(corpus, "bytes", tmp_path / "out", val_tokens=150, like=None)
    first = prepare(what)
    events: list[Event] = []
    assert prepare(what, tell=events.append) == first
    assert events == [Note(f"{tmp_path / 'out'}: is complete")]
    with pytest.raises(InputError, match="was begun with val_tokens = 150, now it is 151"):
        prepare(replace(what, val_tokens=151))


def test_ensuring_does_nothing_where_shards_are(corpus: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    recipe = recipe_of(corpus, folder)
    ensure_prepared(recipe)
    before = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    (tmp_path / "c.jsonl").unlink()  # not even its corpus is needed any more
    events: list[Event] = []
    ensure_prepared(recipe, tell=events.append)
    assert not events
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    (folder / "manifest.json").unlink()
    ensure_prepared(recipe)  # as shards of other software are
    assert not (folder / "manifest.json").exists()


def test_ensuring_goes_on_where_a_preparation_stopped(corpus: str, tmp_path: Path) -> None:
    recipe = recipe_of(corpus, tmp_path / "out")
    whole = prepare(recipe_of(corpus, tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        # Stopped after the validation shard, in the middle of the training shard.
        prepare(recipe, tell=_interrupt_after(20 * 99))
    assert [file.name for file in (tmp_path / "out").glob("*.bin*")] == ["val_000000.bin"]
    events: list[Event] = []
    ensure_prepared(recipe, tell=events.append)
    assert events[0] == Note(f"{tmp_path / 'out'}: goes on after 0.0 MB of text")
    assert hashes(tmp_path / "out") == hashes(tmp_path / "whole")
    assert read_manifest(tmp_path / "out") == whole.manifest


def _interrupt_after(n_bytes: int) -> Tell:
    def tell(event: Event) -> None:
        if isinstance(event, Advance) and event.done >= n_bytes:
            raise KeyboardInterrupt

    return tell


def test_workers_that_start_at_once_wait_for_the_one_that_prepares(
    corpus: str, tmp_path: Path
) -> None:
    recipe = recipe_of(corpus, tmp_path / "out")
    other = Thread(target=ensure_prepared, args=(recipe,))
    with locked(tmp_path / "out"):
        other.start()
        with pytest.raises(InputError, match="another process is writing there"):
            prepare(recipe)
        assert not list((tmp_path / "out").glob("*.bin"))
    other.join()
    assert verify_shards(tmp_path / "out") == 2


def test_verifying_tells_of_every_shard(corpus: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    prepare(Preparation(corpus, "bytes", folder, val_tokens=150, like=None, shard_tokens=1000))
    events: list[Event] = []
    assert verify_shards(folder, tell=events.append) == 5
    assert events[-1] == Advance("verifying", 5, 5, "shards")
    file = folder / "train_000003.bin"
    file.write_bytes(file.read_bytes()[:-1] + b"y")
    with pytest.raises(InputError, match=r"train_000003\.bin: is not the shard"):
        verify_shards(folder)
    with pytest.raises(InputError, match="has no manifest"):
        verify_shards(tmp_path)


def test_a_bpe_is_trained_and_kept_beside_the_shards(tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "c.jsonl", ["the cat sat on the mat " * 20] * 50)
    manifest = prepare(
        Preparation(corpus, "bpe:290", tmp_path / "out", val_tokens=100, like=None)
    ).manifest
    assert (manifest.tokenizer, manifest.vocab_size, manifest.end_of_text) == ("bpe:290", 290, 289)
    assert (tmp_path / "out" / "tokenizer.json").exists()
    assert (stream(tmp_path / "out", "train") == 289).sum() == manifest.of("train")[0].documents


def test_preparing_does_not_import_torch() -> None:
    code = (
        "import sys; from prism_transformer.data import loader, prepare, corpora, tokenizer\n"
        "print('torch' in sys.modules, 'orjson' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout == "False False\n", found.stderr


def test_a_recipe_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="did you mean 'prism-micro'"):
        prepare("prism-microo")
