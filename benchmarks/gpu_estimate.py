"""The table of docs/performance.md: ms per step by part, before and after, estimated, not measured.

Run with: python benchmarks/gpu_estimate.py
"""

from __future__ import annotations

from dataclasses import asdict

from prism_transformer.bench.estimate import step_parts, tokens_per_second
from prism_transformer.recipes.files import load_recipe
from prism_transformer.schedules.paper import scales


def main() -> None:
    """Print the table as Markdown."""
    recipes = {name: load_recipe(f"prism-{name}") for name in scales()}
    columns = [f"{name} {when}" for name in recipes for when in ("before", "after")]
    parts = [step_parts(each, before=old) for each in recipes.values() for old in (True, False)]
    print("| ms per step and GPU |", " | ".join(columns), "|")
    print("|---" * (len(columns) + 1) + "|")
    for name in asdict(parts[0]):
        print(f"| {name} |", " | ".join(f"{getattr(each, name):.1f}" for each in parts), "|")
    print("| **all** |", " | ".join(f"**{each.total:.0f}**" for each in parts), "|")
    rates = [
        tokens_per_second(each, before=old) for each in recipes.values() for old in (True, False)
    ]
    print("| million tokens/s of 8 |", " | ".join(f"{rate / 1e6:.2f}" for rate in rates), "|")
    paper = [each.tokens_per_second for each in scales().values() for _ in range(2)]
    ratios = [rate / theirs for rate, theirs in zip(rates, paper, strict=True)]
    print("| to the paper's |", " | ".join(f"{ratio:.2f}" for ratio in ratios), "|")


if __name__ == "__main__":
    main()
