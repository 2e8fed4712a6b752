"""Names of tasks, and what their rows must hold."""

from __future__ import annotations

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.eval.tasks import BY_NAME, choose_tasks
from tests.eval.files import rows_of


def test_task_names() -> None:
    six = ["piqa", "hellaswag", "arc_easy", "winogrande", "blimp", "wikitext"]
    assert choose_tasks([]) == six
    assert choose_tasks(["piqa,wikitext", "piqa"]) == ["piqa", "wikitext"]
    assert choose_tasks(["diagnostic"]) == ["diagnostic"]
    with pytest.raises(InputError, match="did you mean 'hellaswag'"):
        choose_tasks(["helaswag"])
    with pytest.raises(InputError, match="there are piqa, hellaswag"):
        choose_tasks(["xyz"])


@pytest.mark.parametrize("name", BY_NAME)
def test_every_column_that_is_needed_is_asked_for(name: str) -> None:
    task = BY_NAME[name]
    row = rows_of(task.name, 1)[0]
    assert task.sound(row)
    spare = {"ind", "ctx", "id", "UID"}
    for column in row.keys() - spare:
        assert not task.sound({key: value for key, value in row.items() if key != column})
        assert not task.sound(row | {column: None})
        assert column in task.expected


def test_one_task_may_be_given_as_it_is() -> None:
    assert choose_tasks("diagnostic") == ["diagnostic"]
    assert choose_tasks("piqa,blimp") == ["piqa", "blimp"]
