"""A study's page while its runs come in: written anew, and read anew by the browser that shows it.

A file, no server. It decides nothing: claims, tests and sentences wait for the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event as Signal
from threading import Thread
from time import thread_time

from prism_transformer.core.disk import write_whole, writing
from prism_transformer.core.errors import first_line
from prism_transformer.core.progress import Begun, Event, Left, Measured, Note, Of, Tell, silent
from prism_transformer.figures.chart import svg_text
from prism_transformer.reporting.contents import make_report
from prism_transformer.reporting.page import to_html
from prism_transformer.reporting.reading import views_of
from prism_transformer.reporting.write import PAGE
from prism_transformer.study.collect import collect
from prism_transformer.study.folder import StudyFolder

LEAST_SECONDS = 15.0  # between two pages
SHARE = 0.05  # of the time that drawing may take: training beside it is what matters


def write_live(study: StudyFolder, out: Path, *, stopped: bool = False) -> Path:
    """Write the page of a study as it is now; nothing else is written, and no look recorded.

    A browser goes on reading it anew until the study is ``stopped``.
    """
    found = collect(study.plan, [study.folder], study.failures(), study.collected, study.tuning)
    report = make_report(views_of([found]), live=True, stopped=stopped)
    pictures = {
        each.key: svg_text(each.chart.figure) for each in report.drawings if each.chart is not None
    }
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / PAGE, to_html(report, pictures))
    return out / PAGE


class _Follower(Thread):
    """Writes the page when there is news, but not too often."""

    def __init__(self, write: Callable[[], None], least_seconds: float) -> None:
        super().__init__(name="live page", daemon=True)
        self.write, self.least_seconds = write, least_seconds
        self.news, self.end = Signal(), Signal()

    def run(self) -> None:
        while not self.end.is_set():
            self.news.clear()
            began = thread_time()  # what it takes from others, however slow the machine is
            self.write()
            self.end.wait(max(self.least_seconds, (thread_time() - began) / SHARE))
            self.news.wait()

    def stop(self) -> None:
        self.end.set()
        self.news.set()
        self.join()


@contextmanager
def live_page(
    study: StudyFolder, out: Path, tell: Tell = silent, least_seconds: float = LEAST_SECONDS
) -> Iterator[Tell]:
    """A function to tell events of a study to, which passes them on; its page follows them."""
    failures: list[str] = []

    def write(stopped: bool = False) -> None:
        try:
            write_live(study, out, stopped=stopped)
        except Exception as error:  # a page that cannot be drawn now keeps nobody from training
            if not failures:
                tell(Note(f"{out / PAGE}: cannot be written now: {first_line(error)}"))
            failures.append(first_line(error))

    def told(event: Event) -> None:
        if _is_news(event):
            follower.news.set()
        tell(event)

    follower = _Follower(write, least_seconds)
    follower.start()
    try:
        yield told
    except BaseException:
        follower.stop()
        write(stopped=True)  # no browser shall wait for what does not come
        raise
    follower.stop()


def _is_news(event: Event) -> bool:
    """A run or a stage of it begins or ends, or a loss was validated."""
    while isinstance(event, Of):
        event = event.event
    if isinstance(event, Measured):
        return event.row["kind"] == "val"
    return isinstance(event, Begun | Left)
