from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from prism_transformer.core.errors import InputError
from prism_transformer.hf import PrismConfig
from prism_transformer.hf.configuration_prism import LAYER_FIELDS
from prism_transformer.recipes.files import load_recipe
from prism_transformer.schedule import ScheduleError
from tests.hf.models import GROUPED, RAGGED, UNIFORM, prism_config


def per_layer(config: PrismConfig, name: str) -> list[int]:
    return [getattr(layer, name) for layer in config.per_layer_config]


def test_layers_follow_the_schedule() -> None:
    config = prism_config(**RAGGED)
    assert config.num_hidden_layers == 6
    assert per_layer(config, "num_attention_heads") == [1, 2, 3, 4, 6, 12]
    assert per_layer(config, "num_key_value_heads") == [1, 2, 3, 4, 6, 12]
    assert per_layer(config, "head_dim") == [96, 48, 32, 24, 16, 8]
    assert per_layer(prism_config(**GROUPED), "num_key_value_heads") == [1, 1, 2, 4, 6, 6]


@pytest.mark.parametrize("name", LAYER_FIELDS)
def test_no_model_wide_value_where_layers_differ(name: str) -> None:
    config = prism_config(**RAGGED)
    with pytest.raises(RuntimeError, match="per-layer attribute"):
        getattr(config, name)
    # Tools that probe get the default, not an error.
    assert not hasattr(config, name)
    assert getattr(config, name, 7) == 7
    assert getattr(config, "nothing_of_the_kind", None) is None


def test_a_uniform_config_answers_as_llamas_does() -> None:
    config = prism_config(**UNIFORM)
    assert [getattr(config, name) for name in LAYER_FIELDS] == [12, 12, 8]
    assert not config.is_heterogeneous


def test_config_json_shows_the_schedule_once(tmp_path: Path) -> None:
    for fields in (RAGGED, UNIFORM):
        prism_config(**fields).save_pretrained(tmp_path)
        text = (tmp_path / "config.json").read_text("utf-8")
        written = json.loads(text)
        assert written["head_schedule"] == fields["head_schedule"]
        assert not {*LAYER_FIELDS, "per_layer_config", "num_hidden_layers"} & set(written)
        again = AutoConfig.from_pretrained(tmp_path)
        assert isinstance(again, PrismConfig)
        assert again.to_json_string() == prism_config(**fields).to_json_string()
        assert again.layer_fields() == prism_config(**fields).layer_fields()


def test_assignment_changes_every_derived_field() -> None:
    config = prism_config(**RAGGED)
    config.head_schedule = [12, 12, 12, 12]  # type: ignore[assignment]
    assert config.head_schedule == "12x4"
    assert (config.num_hidden_layers, config.num_attention_heads, config.head_dim) == (4, 12, 8)
    config.head_schedule = "2x2 4x2"
    config.queries_per_kv = 2
    assert per_layer(config, "num_key_value_heads") == [1, 1, 2, 2]
    config.hidden_size = 192
    assert per_layer(config, "head_dim") == [96, 96, 48, 48]


def test_from_pretrained_with_another_schedule(tmp_path: Path) -> None:
    prism_config(**RAGGED).save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path, head_schedule="2x3 12x3")
    assert per_layer(config, "num_attention_heads") == [2, 2, 2, 12, 12, 12]
    assert json.loads(config.to_json_string())["head_schedule"] == "2x3 12x3"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("head_schedule", "1x1 5x5"),
        ("head_schedule", "banana"),
        ("hidden_size", 100),
        ("queries_per_kv", 2),
        ("num_attention_heads", 12),
        ("num_hidden_layers", 2),
        ("head_dim", 64),
        ("per_layer_config", {0: {"num_attention_heads": 2}}),
    ],
)
def test_illegal_assignment_is_refused_and_changes_nothing(key: str, value: Any) -> None:
    config = prism_config(**RAGGED)
    before = copy.deepcopy(config.to_dict()), config.layer_fields()
    with pytest.raises(InputError):
        setattr(config, key, value)
    assert (config.to_dict(), config.layer_fields()) == before
    assert per_layer(config, "num_attention_heads") == [1, 2, 3, 4, 6, 12]


def test_the_layer_is_named() -> None:
    with pytest.raises(InputError, match="layer 1: 5 heads do not divide d_model=96"):
        prism_config(head_schedule="1x1 5x5")


def test_derived_fields_may_be_given_only_if_they_agree() -> None:
    layers = {"0": {"num_attention_heads": 1}, "5": {"head_dim": 8}}
    prism_config(**RAGGED, num_hidden_layers=6, per_layer_config=layers)
    with pytest.raises(ScheduleError, match="disagrees with head_schedule"):
        prism_config(**RAGGED, per_layer_config={"0": {"num_attention_heads": 3}})
    with pytest.raises(ScheduleError, match="num_attention_heads = 12"):
        prism_config(**RAGGED, num_attention_heads=12)


@pytest.mark.parametrize(
    "field", [{"attention_bias": True}, {"hidden_act": "gelu"}, {"attention_dropout": 0.1}]
)
def test_fields_that_would_be_ignored_are_refused(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is not supported"):
        prism_config(**field)
    prism_config(attention_bias=False, hidden_act="silu")
    with pytest.raises(ValueError, match="num_tokens = 400"):
        prism_config(num_tokens=400)


def test_a_dictionary_makes_the_same_config_again() -> None:
    for fields in (RAGGED, GROUPED, UNIFORM):
        config = prism_config(**fields)
        assert PrismConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
    assert prism_config(**UNIFORM).to_dict()["num_attention_heads"] == 12


def test_copies_are_independent() -> None:
    config = prism_config(**RAGGED)
    for twin in (copy.copy(config), copy.deepcopy(config)):
        assert per_layer(twin, "num_attention_heads") == [1, 2, 3, 4, 6, 12]
    twin.head_schedule = "12x6"
    assert per_layer(config, "num_attention_heads") == [1, 2, 3, 4, 6, 12]


@pytest.mark.parametrize("name", ["prism-small", "baseline-medium", "prism-large"])
def test_native_configs_go_there_and_back(name: str) -> None:
    native = load_recipe(name).model
    config = PrismConfig.from_native(native)
    assert config.native == native
    assert config.vocab_size == 50304
    assert config.num_tokens == 50257


def test_rope_types_that_change_while_running_are_refused_by_name() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    with pytest.raises(ValueError, match=r"'dynamic'.*not supported"):
        prism_config(rope_parameters=rope)
    config = prism_config(**RAGGED)
    for bad in (rope, None):
        with pytest.raises(ValueError, match="not supported"):
            config.rope_parameters = bad
