"""Profiles: ragged heads, JSON, frames, tables, figures; and by the name of a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from prism_transformer.analysis.profile import (
    Profile,
    attention_profile,
    check_comparable,
    layer_figure,
    layer_table,
)
from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Advance, Event
from prism_transformer.core.sealed import read_sealed
from prism_transformer.data.loader import open_windows
from prism_transformer.models.weights import load_model
from prism_transformer.training.run import Run, checkpoints
from tests.analysis.models import RAGGED, model_of, some_tokens
from tests.conftest import small_config


def test_heads_are_ragged_and_every_statistic_is_there(profile: Profile) -> None:
    assert profile.schedule == (1, 2, 3, 12, 12)
    assert profile.widths == small_config(RAGGED).head_dims
    assert profile.n_sequences == 6
    assert profile.n_progressive == 3
    frame = profile.to_frame()
    assert len(frame) == sum(profile.schedule)
    assert list(frame[frame.layer == 2]["head"]) == [0, 1, 2]
    for statistic in profile.statistics:
        means = frame.groupby("layer")[statistic].mean().to_numpy()
        assert profile.means(statistic) == pytest.approx(means, rel=1e-9)


def test_json_comes_back_whole(profile: Profile, tmp_path: Path) -> None:
    file = tmp_path / "attention.json"
    file.write_text(json.dumps({"profile": profile.to_json()}, allow_nan=False))
    again = Profile.read(file)
    assert again.to_json() == profile.to_json()
    file.write_text("{}")
    with pytest.raises(InputError, match="is no attention profile"):
        Profile.read(file)


def test_rows_of_one_arm_and_of_two(profile: Profile) -> None:
    rows = profile.table().plain_rows()
    assert [row["heads"] for row in rows] == [1, 2, 3, 12, 12]
    assert all(row["+-"] > 0 for row in rows)
    uniform = attention_profile(model_of("12x5"), [some_tokens(6)])
    rows = layer_table([uniform], [profile], "entropy").plain_rows()
    gap = profile.means("entropy") - uniform.means("entropy")
    assert [row["difference"] for row in rows] == pytest.approx(list(gap))
    assert rows[0]["heads"] == "12 / 1"
    seeds = layer_table([uniform, uniform], [profile, profile], "distance").plain_rows()
    assert all(row["+-"] == 0 for row in seeds)  # the same twice has no spread
    short = attention_profile(model_of(), [some_tokens(1, 16)])
    with pytest.raises(InputError, match="seq_len is 48 and 16"):
        check_comparable([profile, short])


def test_a_profile_draws_itself(profile: Profile) -> None:
    ax = profile.plot("entropy").axes[0]
    assert ax.get_ylabel() == "entropy of attention, nats"
    assert len(ax.collections) == 5  # a cloud of heads for each layer


def test_a_run_by_name_is_its_model_on_its_own_slice(trained: Path) -> None:
    events: list[Event] = []
    run = Run.open(trained)
    found = attention_profile(run, sequences=3, batch=2, tell=events.append)
    rows = open_windows(Path(run.recipe.data.folder), "val", 32, run.recipe.model.vocab_size)
    tokens = torch.from_numpy(rows.read(range(3)))[:, :-1]
    by_hand = attention_profile(load_model(checkpoints(trained)[-1]), [tokens])
    for statistic in by_hand.statistics:
        assert found.means(statistic) == pytest.approx(by_hand.means(statistic), rel=1e-5)
    assert found.source == f"{trained}, step-00000020"
    assert found.file == trained / "analysis" / "step-00000020" / "attention.json"
    kept = read_sealed(found.file)
    assert list(kept) == ["source", "text", "model", "profile"]
    assert Profile.read(found.file).to_json() == found.to_json()
    advances = [each for each in events if isinstance(each, Advance)]
    assert [each.done for each in advances] == [0, 1, 2]


def test_batches_are_for_models_at_hand() -> None:
    with pytest.raises(InputError, match="a model needs batches"):
        attention_profile(model_of())
    with pytest.raises(InputError, match="brings its text"):
        attention_profile("runs/some", [some_tokens(1)])


def test_a_notebook_shows_the_figure_or_the_numbers(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = profile._repr_html_()
    assert shown.startswith("<svg")
    assert "mean attention distance, tokens" in shown
    assert repr(profile) == f"Profile({RAGGED}; 6 sequences of 48 tokens)"
    monkeypatch.setitem(sys.modules, "prism_transformer.figures.chart", None)  # not to be imported
    assert profile._repr_html_().startswith("<pre>layer")


def test_two_arms_are_drawn_under_what_tells_them_apart(profile: Profile) -> None:
    uniform = attention_profile(model_of("12x5"), [some_tokens(6)])
    left, right = layer_figure([uniform], [profile], "distance").axes
    assert right.get_title() == f"{RAGGED} minus 12x5"
    assert np.asarray(left.lines[0].get_ydata()) == pytest.approx(uniform.means())
    assert len(layer_figure([uniform], [], "distance").axes) == 1
