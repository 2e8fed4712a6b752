"""Folders with their code, where only transformers and torch are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from prism_transformer.hf.code import AUTO_MAP, code_files
from prism_transformer.hf.export import Opened, write_hf
from tests.hf.models import GROUPED, RAGGED, byte_level_tokenizer, prism, tokens

# Without our package (no site, so no editable install), and without pydantic.
ALONE = """
import json, sys
sys.path += json.loads(sys.argv[1])
sys.modules["pydantic"] = sys.modules["prism_transformer"] = None
import torch
from transformers import AutoModelForCausalLM
folder = sys.argv[2]
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
text = torch.tensor(json.loads(sys.stdin.read()))
written = model.generate(text, max_new_tokens=4, do_sample=False, attention_mask=text * 0 + 1)
with torch.no_grad():
    logits = model(text).logits
print(json.dumps([type(model).__module__, logits.tolist(), written.tolist()]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("fields", [RAGGED, GROUPED], ids=["ragged", "gqa"])
def test_a_folder_stands_where_only_transformers_and_torch_are(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = prism(**fields, vocab_size=384, num_tokens=300)
    write_hf(Opened(model, byte_level_tokenizer("words")), tmp_path / "hf", "code")
    places = {str(Path(str(each.__file__)).parents[1]) for each in (transformers, torch)}
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "cache"))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ALONE, json.dumps(sorted(places)), str(tmp_path / "hf")],
        input=json.dumps(tokens().tolist()),
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    module, logits, written = json.loads(done.stdout.splitlines()[-1])
    assert module.startswith("transformers_modules")
    with torch.no_grad():
        torch.testing.assert_close(torch.tensor(logits), model(tokens()).logits)
    mask = torch.ones_like(tokens())
    expected = model.generate(tokens(), max_new_tokens=4, do_sample=False, attention_mask=mask)
    assert written == expected.tolist()


def test_the_code_is_ours_and_named_in_the_config(tmp_path: Path) -> None:
    model = prism(**RAGGED)
    write_hf(Opened(model), tmp_path / "hf", "code")
    written = json.loads((tmp_path / "hf" / "config.json").read_text("utf-8"))
    assert written["auto_map"] == AUTO_MAP
    assert {path.name for path in (tmp_path / "hf").glob("*.py")} == set(code_files())
    for name, text in code_files().items():
        assert "prism_transformer." not in text.replace("prism_transformer.model``", ""), name
        compile(text, name, "exec")
    assert not hasattr(model.config, "auto_map")  # the model that was given is as it was
