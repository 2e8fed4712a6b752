"""transformers' own tests for causal language models, run on ours.

They are in its repository, not in its wheel: PRISM_TRANSFORMERS_CHECKOUT names a checkout of the
version that is installed, without which there is nothing to run. Its marks are not ours:
``pytest -o addopts= tests/hf/test_common_suite.py``.
"""

from __future__ import annotations

import importlib
import os
import sys
import unittest
from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto import modeling_auto

import tests
from prism_transformer.hf import (
    PrismConfig,
    PrismForCausalLM,
    PrismForQuestionAnswering,
    PrismForSequenceClassification,
    PrismForTokenClassification,
    PrismModel,
)

CHECKOUT = os.environ.get("PRISM_TRANSFORMERS_CHECKOUT")
if not CHECKOUT:
    pytest.skip("PRISM_TRANSFORMERS_CHECKOUT is not set", allow_module_level=True)

pytestmark = pytest.mark.slow


# Their package has the name of ours, and refers to itself by it: what ours has not is theirs.
tests.__path__.append(str(Path(CHECKOUT) / "tests"))
sys.path += [CHECKOUT, str(Path(CHECKOUT) / "utils")]
THEIRS: Any = importlib.import_module("tests.causal_lm_tester")


# Their tests tell by these lists which models want labels, and have a loss.
for task, model in (
    ("MODEL_MAPPING_NAMES", PrismModel),
    ("MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES", PrismForSequenceClassification),
    ("MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES", PrismForTokenClassification),
    ("MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES", PrismForQuestionAnswering),
):
    getattr(modeling_auto, task)["prism"] = model.__name__


class UniformTester(THEIRS.CausalLMModelTester):
    config_class = PrismConfig
    base_model_class = PrismModel
    causal_lm_class = PrismForCausalLM
    question_answering_class = PrismForQuestionAnswering
    sequence_classification_class = PrismForSequenceClassification
    token_classification_class = PrismForTokenClassification
    schedule = "4x2"

    def __init__(self, parent: Any) -> None:
        heads = {"num_attention_heads": 4, "num_key_value_heads": 4}  # what some tests expect
        super().__init__(parent, head_schedule=self.schedule, hidden_size=64, h_base=4, **heads)


class RaggedTester(UniformTester):
    schedule = "2x1 4x1"


class UniformTest(THEIRS.CausalLMModelTest, unittest.TestCase):
    model_tester_class = UniformTester


class RaggedTest(THEIRS.CausalLMModelTest, unittest.TestCase):
    model_tester_class = RaggedTester


# Name by name, with the reason; everything else that Llama passes must pass.
UNLIKE_LLAMA = {
    "test_model_rope_scaling_frequencies": "looks for a module that holds frequencies",
    "test_model_rope_scaling_from_config_1_dynamic": "dynamic RoPE is refused by name",
}
ONE_HEAD_COUNT = (
    "test_assisted_decoding_matches_greedy_search_0_random",
    "test_assisted_decoding_matches_greedy_search_1_same",
    "test_assisted_decoding_sample",
    "test_attention_outputs",
    "test_beam_sample_generate_dict_output",
    "test_beam_search_generate_dict_output",
    "test_beam_search_generate_dict_outputs_use_cache",
    "test_generate_compilation_all_outputs",
    "test_generate_from_inputs_embeds_with_static_cache",
    "test_generate_with_static_cache",
    "test_greedy_generate_dict_outputs",
    "test_greedy_generate_dict_outputs_use_cache",
    "test_past_key_values_format",
    "test_sample_generate_dict_output",
)


def leave_out(test: type, name: str, reason: str) -> None:
    setattr(test, name, unittest.skip(reason)(getattr(test, name)))


for name, why in UNLIKE_LLAMA.items():
    leave_out(UniformTest, name, why)
    leave_out(RaggedTest, name, why)
for name in ONE_HEAD_COUNT:
    leave_out(RaggedTest, name, "reads one head count, or one width, of the whole config")
