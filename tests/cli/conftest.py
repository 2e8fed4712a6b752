"""What tests of commands borrow from tests of the library."""

from tests.eval.conftest import short_run, small_data, small_model
from tests.study.conftest import finished

__all__ = ["finished", "short_run", "small_data", "small_model"]
