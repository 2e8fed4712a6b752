"""What is said of a schedule; ``test_main.py`` has the commands."""

from __future__ import annotations

from prism_transformer.cli.schedule import print_schedule, schedule_facts
from prism_transformer.schedules.design import shuffle
from prism_transformer.schedules.paper import presets
from tests.cli.test_terminal import printed, text_of


def test_schedule_page_names_everything() -> None:
    console = printed(100)
    preset = presets()["config-7"]
    print_schedule(console, schedule_facts(preset.schedule, 768, 12, ["math"] * 12))
    page = text_of(console)
    for expected in (
        "2x2 4x2 8x2 12x6",
        "384",
        "beyond 256: no flash kernel",
        "math",
        "layers 0-1",
        "reversed    12x6 8x2 4x2 2x2",
        f"shuffled    {shuffle(preset.schedule, 0)}   (seed 0)",
        "bracketing  4x12, 6x12, 8x12, 12x12",
    ):
        assert expected in page
