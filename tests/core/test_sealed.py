from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.core.sealed import OWN_SUM, has_sum, read_sealed, sealed_json

FACTS = {"loss": 5.25, "rows": [{"step": 1, "name": "ä"}], "nothing": None, "n": 10**30}


def test_what_is_written_is_read_again_and_may_be_laid_out_anew(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    file.write_text(sealed_json(FACTS), "utf-8")
    assert read_sealed(file) == FACTS
    again = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps(dict(reversed(again.items())), indent=7), "utf-8")
    assert read_sealed(file) == FACTS


def test_every_changed_byte_is_found_or_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    whole = sealed_json(FACTS).encode()
    refused = 0
    for place in range(len(whole)):
        for bit in (1, 4):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
            try:
                found = read_sealed(file)
            except InputError:
                refused += 1
            else:
                # The name of the sum itself was hit, and then the file counts as an older one.
                assert {**FACTS, **found}.keys() - FACTS.keys() or found == FACTS
    assert refused > len(whole)


def test_values_that_json_has_no_name_for_keep_their_sum(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    file.write_text(sealed_json({"loss": math.inf, "pair": (1, 2)}), "utf-8")
    assert read_sealed(file) == {"loss": math.inf, "pair": [1, 2]}


@pytest.mark.parametrize("text", ["[1]", "3", '"text"', "null", "{", "[" * 100_000])
def test_another_shape_is_damage(tmp_path: Path, text: str) -> None:
    file = tmp_path / "facts.json"
    file.write_text(text, "utf-8")
    with pytest.raises(InputError, match=r"facts\.json: "):
        read_sealed(file)


def test_an_older_file_has_no_sum(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    file.write_text(json.dumps(FACTS), "utf-8")
    assert read_sealed(file) == FACTS
    assert not has_sum(FACTS)
    assert has_sum(json.loads(sealed_json(FACTS)))
    assert OWN_SUM not in FACTS
