"""train and resume as a caller in Python sees them."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Advance, Event, Measured, Note
from prism_transformer.training import device
from prism_transformer.training.api import resume, train
from prism_transformer.training.run import Run, read_environment, read_metrics, write_recipe
from prism_transformer.training.stopping import Stopped
from tests.training.runs import assert_same_end, final_state, tiny


def lines(events: list[Event]) -> list[str]:
    return [event.line for event in events if isinstance(event, Note)]


def test_a_run_told_from_its_beginning_to_its_end(tmp_path: Path, data: Path) -> None:
    events: list[Event] = []
    run = train(tiny(data), tmp_path / "run", device="cpu", tell=events.append)
    assert (run.folder, run.step, run.complete) == (tmp_path / "run", 20, True)
    rows = [event.row for event in events if isinstance(event, Measured)]
    assert rows == read_metrics(tmp_path / "run")
    advances = [event for event in events if isinstance(event, Advance)]
    assert advances[0] == Advance("step", 0, 20, detail="validating")
    assert [event.done for event in advances] == list(range(21))
    assert events.index(advances[-1]) > events.index(Measured(rows[-1]))  # after all is done
    at_12 = next(row for row in rows if row["step"] == 12)
    rate = f"{at_12['tokens_per_second']:,.0f} tokens/s"
    assert advances[12].detail == f"loss {at_12['loss']:.4f}  {rate}"
    told = lines(events)
    assert told[0].startswith(
        f"{tmp_path / 'run'}: 2x1 4x1 8x1 heads, 0.05M parameters, 20 steps of"
    )
    assert sum("  validation loss " in line for line in told) == 5
    assert told[-2] == f"finished: validation loss {run.loss:.4f} nats after 20 steps"


def test_an_encoder_that_is_complete_suggests_what_it_can_do(tmp_path: Path, data: Path) -> None:
    events: list[Event] = []
    shape = ("model.attention=bidirectional", "train.objective=masked", "model.vocab_size=258")
    recipe = tiny(data, *shape, "train.tokens=512")
    train(recipe, tmp_path / "run", device="cpu", tell=events.append)
    assert lines(events)[-1].endswith(f"try: prism loss {tmp_path / 'run'}")


def test_until_and_resume_end_as_one_run_would(tmp_path: Path, data: Path, trained: Path) -> None:
    events: list[Event] = []
    half = train(tiny(data), tmp_path / "run", until=7, device="cpu", tell=events.append)
    assert (half.step, half.complete) == (7, False)
    saved = f"stopped at step 7, saved; go on with `prism resume {tmp_path / 'run'}`"
    assert lines(events)[-1] == saved
    again = resume(half, until=7, device="cpu", tell=events.append)
    assert lines(events)[-1] == f"{tmp_path / 'run'} is at step 7 already"
    assert again.step == 7
    assert resume(str(tmp_path / "run"), device="cpu", tell=events.append).complete
    assert any("goes on from" in line and "step-00000007" in line for line in lines(events))
    assert_same_end(tmp_path / "run", train(tiny(data), tmp_path / "whole", device="cpu").folder)


def test_a_signal_is_an_exception_with_everything_saved(tmp_path: Path, data: Path) -> None:
    events: list[Event] = []

    def tell(event: Event) -> None:
        events.append(event)
        if isinstance(event, Measured) and event.row["step"] == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Stopped, match="saved; go on with `prism resume") as stop:
        train(tiny(data), tmp_path / "run", device="cpu", tell=tell)
    assert stop.value.exit_code == 130
    assert "stopping after this step; once more to stop at once" in lines(events)
    step = Run.open(tmp_path / "run").step
    assert 3 <= step < 20
    assert f"stopped at step {step}, saved" in str(stop.value)
    resume(tmp_path / "run", device="cpu")
    whole = train(tiny(data), tmp_path / "whole", device="cpu")
    assert_same_end(tmp_path / "run", whole.folder)


def test_a_recipe_by_its_file_has_a_folder_of_its_name(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny(data)
    monkeypatch.chdir(tmp_path)
    run = train(data / "tiny.toml", until=1, device="cpu")
    assert run.folder == Path("runs/tiny-seed0")
    assert train(tiny(data), until=1, device="cpu").folder == Path("runs/2x1-4x1-8x1-seed0")


def test_what_is_refused_leaves_nothing_behind(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "run"
    with pytest.raises(InputError, match="--until 21: the run has 20 steps"):
        train(tiny(data), place, until=21, device="cpu")
    with pytest.raises(InputError, match="device 'mps'"):
        train(tiny(data), place, device="mps")
    monkeypatch.setattr(device, "_compiler_problem", lambda _: "no g++")
    with pytest.raises(InputError, match="the compiler does not work: no g"):
        train(tiny(data, "train.compile=on"), place, device="cpu")
    assert not place.exists()


def test_a_compiler_that_does_not_work_is_written_down(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_compiler_problem", lambda _: "no g++")
    monkeypatch.setitem(device.MIN_COMPILED_FLOPS, "cpu", 0.0)
    run = train(tiny(data), tmp_path / "run", until=1, device="cpu")
    (session,) = read_environment(run.folder)["sessions"]
    assert session["compiled"] is False
    assert session["compile_reason"] == "the compiler does not work: no g++"


def test_a_run_keeps_its_recipe(tmp_path: Path, data: Path) -> None:
    run = train(tiny(data), tmp_path / "run", until=1, device="cpu")
    with pytest.raises(InputError, match=r"this would change optim\.lr: 0\.003 -> 0\.1"):
        resume(run, ["optim.lr=0.1"])
    with pytest.raises(InputError, match="is a run already"):
        train(tiny(data), tmp_path / "run")
    with pytest.raises(InputError, match=r"--until 2\.5: the run has"):
        resume(run, until=2.5)  # type: ignore[arg-type]
    assert repr(run) == f"Run({str(tmp_path / 'run')!r})"


LONG = ("optim.lr_schedule=constant", "run.val_every=100")


@pytest.mark.parametrize("at", [5, pytest.param(10, marks=pytest.mark.slow)])
def test_a_longer_run_is_bit_for_bit_the_one_that_was_long_from_the_start(
    tmp_path: Path, data: Path, at: int
) -> None:
    """Of 10 steps, finished or half done, made 20."""
    events: list[Event] = []
    short = train(tiny(data, *LONG, "train.tokens=5120"), tmp_path / "run", until=at, device="cpu")
    assert short.recipe.n_steps == 10
    longer = resume(short, ["train.tokens=10240"], device="cpu", tell=events.append)
    assert (longer.step, longer.complete) == (20, True)
    assert "from here on train.tokens: 5120 -> 10240" in lines(events)
    whole = train(tiny(data, *LONG), tmp_path / "whole", device="cpu")
    (mine, rows), (others, other_rows) = final_state(longer.folder), final_state(whole.folder)
    for name, weight in others.items():
        assert weight.equal(mine[name]), name
    # The end of the shorter run has measurements that no other run has there.
    assert [row for row in rows if row["kind"] == "train"] == [
        row for row in other_rows if row["kind"] == "train"
    ]
    assert longer.loss == whole.loss
    assert Run.open(longer.folder).recipe == whole.recipe
    facts = read_environment(longer.folder)
    assert facts["recipe"] == read_environment(whole.folder)["recipe"]
    changes = [session["recipe_changes"] for session in facts["sessions"]]
    assert changes == [[], ["train.tokens: 5120 -> 10240"]]
    resume(longer, device="cpu")  # and it goes on under its new recipe from then on


def test_a_budget_that_cannot_grow_is_refused_and_nothing_changes(
    tmp_path: Path, trained: Path
) -> None:
    shutil.copytree(trained, tmp_path / "run")
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    with pytest.raises(InputError, match=r"run: train\.tokens: 10240 -> 20480: the run has"):
        resume(tmp_path / "run", ["train.tokens=20480"], device="cpu")
    with pytest.raises(InputError, match=r"only get a larger train\.tokens"):
        resume(tmp_path / "run", ["train.tokens=5120"], device="cpu")
    after = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    assert after == before


def test_killed_between_recipe_and_environment_a_longer_run_goes_on(
    tmp_path: Path, data: Path
) -> None:
    short = train(tiny(data, *LONG, "train.tokens=5120"), tmp_path / "run", device="cpu")
    write_recipe(short.folder, tiny(data, *LONG))  # all that was done of the change
    assert resume(short.folder, device="cpu").step == 20
    changes = read_environment(short.folder)["sessions"][-1]["recipe_changes"]
    assert changes == ["train.tokens: 5120 -> 10240"]
