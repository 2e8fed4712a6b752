"""Files as an older version wrote them."""

from __future__ import annotations

import json
from pathlib import Path

from prism_transformer.core.sealed import OWN_SUM
from prism_transformer.study.collected import SUMS


def without_sums(file: Path) -> None:
    """Take away every sum that a JSON file carries: it is judged by what it says alone."""
    facts = json.loads(file.read_text("utf-8"))
    kept = {key: value for key, value in facts.items() if key not in (OWN_SUM, SUMS)}
    file.write_text(json.dumps(kept), "utf-8")
