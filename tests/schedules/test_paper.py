from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

import pytest

from prism_transformer.schedule import ScheduleError
from prism_transformer.schedules import paper
from prism_transformer.schedules.paper import presets, resolve

SOURCE = Path(__file__).parents[3] / "shared" / "paper" / "prism.tex"


def test_constants_are_those_of_its_tables() -> None:
    assert tuple(paper.scales()) == paper.SCALES
    starts = {scale.d_model // scale.schedule.heads[0] for scale in paper.scales().values()}
    assert starts == {paper.START_WIDTH}


def test_gains_are_the_printed_losses_apart() -> None:
    rows = paper.ablation()
    baseline = rows["baseline"].loss
    for row in rows.values():
        if row.gain is not None:  # printed to four places, from losses with more
            assert baseline - row.loss == pytest.approx(row.gain, abs=1.5e-4)


def test_small_is_the_same_in_both_tables() -> None:
    scale, row = paper.scales()["small"], paper.ablation()["small"]
    assert scale.schedule == row.schedule
    assert scale.loss == {"baseline": paper.ablation()["baseline"].loss, "prism": row.loss}


def test_gain_falls_with_the_mean_head_count() -> None:
    rows = [row for row in paper.ablation().values() if row.gain is not None]
    means = [row.schedule.mean_heads for row in rows]
    assert means == sorted(means, reverse=True)
    assert [row.gain for row in rows] == sorted(row.gain or 0 for row in rows)


@pytest.mark.skipif(not SOURCE.exists(), reason="the paper's source is not beside this checkout")
def test_numbers_are_the_papers() -> None:
    text = SOURCE.read_text("utf-8")
    for row in paper.ablation().values():
        heads = ",".join(map(str, row.schedule.heads))
        line = next(line for line in text.splitlines() if f"({heads})" in line)
        assert f"{row.loss:.4f}" in line
        if row.gain is not None:
            assert f"{row.gain:.4f}" in line
            assert f"{row.throughput_change}\\%" in line
    for scale in paper.scales().values():
        pattern = rf"{scale.name.title()}\s+& {scale.params} & {scale.n_layers} & {scale.d_model}"
        assert re.search(rf"{pattern}\s+& {scale.h_base} & {scale.batch}", text)
        for loss, std in zip(scale.loss.values(), scale.loss_std.values(), strict=True):
            numbers = rf"{loss:.4f} \\pm {std:.4f}}}?\$ & {scale.tokens_per_second // 1000}K"
            assert re.search(rf"{numbers} & {scale.hours:.2f}", text)


@pytest.mark.skipif(not SOURCE.exists(), reason="the paper's source is not beside this checkout")
def test_benchmarks_are_the_papers() -> None:
    table = SOURCE.read_text("utf-8").split(r"\label{tab:benchmarks}")[1].split(r"\bottomrule")[0]
    printed = re.findall(r"\b\d\d\.\d\b", table.split(r"\midrule", 1)[1])
    order = ("hellaswag", "piqa", "winogrande", "blimp", "arc_easy", "wikitext")
    ours = [
        f"{scale.benchmarks[arm][task]:.1f}"
        for scale in paper.scales().values()
        for arm in ("baseline", "prism")
        for task in order
    ]
    assert printed == ours


def test_numbers_in_the_text() -> None:
    assert paper.text().tokens_per_parameter == (25, 30)
    assert paper.text().plateau == -0.008
    assert paper.scales()["medium"].gap == pytest.approx(-0.0071)


def test_presets_are_the_papers_rows() -> None:
    means = [round(presets()[f"config-{n}"].schedule.mean_heads, 1) for n in range(1, 8)]
    assert means == [10.4, 10.3, 10.0, 10.0, 9.7, 9.5, 8.3]
    assert [p.schedule.heads[0] * 256 for p in islice(presets().values(), 3)] == [768, 1024, 1536]
    assert len(presets()) == 11


def test_resolve_reads_presets_and_notation() -> None:
    assert resolve("small") == resolve("3x2 6x2 8x2 12x6")
    with pytest.raises(ScheduleError, match="did you mean the preset 'medium'"):
        resolve("mediun")
