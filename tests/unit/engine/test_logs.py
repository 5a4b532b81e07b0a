from __future__ import annotations

import io
import json
import logging

import pytest

from lapse.core.log import get_logger
from lapse.engine.running.logs import configure_logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_an_event_is_one_json_object_per_line_where_nobody_watches() -> None:
    stream = io.StringIO()
    configure_logs(form="auto", level="info", stream=stream)
    get_logger("lapse.test").info("something_happened", count=3)
    event = json.loads(stream.getvalue())

    assert event["event"] == "something_happened"
    assert (event["count"], event["level"], event["logger"]) == (3, "info", "lapse.test")
    assert event["timestamp"].endswith("Z")


def test_an_event_is_a_line_for_people_on_a_terminal() -> None:
    stream = Terminal()
    configure_logs(form="auto", level="info", stream=stream)
    get_logger("lapse.test").info("something_happened", count=3)

    assert "something_happened" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_less_important_events_than_the_level_are_left_out() -> None:
    stream = io.StringIO()
    configure_logs(form="json", level="warning", stream=stream)
    get_logger("lapse.test").info("unimportant")
    logging.getLogger("uvicorn.error").info("unimportant too")
    get_logger("lapse.test").warning("important")

    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["important"]


@pytest.mark.parametrize("name", ["uvicorn.error", "asyncio", "alembic.runtime.plugins"])
def test_of_libraries_that_our_own_events_tell_of_only_warnings_are_shown(name: str) -> None:
    stream = io.StringIO()
    configure_logs(form="json", level="info", stream=stream)
    logging.getLogger(name).info("setup plugin")
    logging.getLogger(name).warning("a warning")

    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["a warning"]


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_traceback_shows_no_local_variable_because_those_hold_secrets(form: str) -> None:
    stream = io.StringIO()
    configure_logs(form=form, level="info", stream=stream)  # type: ignore[arg-type]

    def fails() -> None:
        password = f"hunter{1 + 1}"  # not in the source, which a traceback does show
        raise RuntimeError(f"with {len(password)} characters")

    try:
        fails()
    except RuntimeError:
        get_logger("lapse.test").exception("it_failed")

    assert "RuntimeError: with 7 characters" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


def test_an_event_on_a_terminal_holds_no_escape_sequence_of_its_data() -> None:
    stream = Terminal()
    configure_logs(form="auto", level="info", stream=stream)
    get_logger("lapse.test").info("something_happened", workspace="\x1b]0;title\x07\x9b2J")
    get_logger("lapse.test").error("it_failed", exc_info=RuntimeError("\x1b]0;title\x07"))

    assert r"\x1b]0;title\x07\x9b2J" in stream.getvalue()
    assert not {"\x07", "\x9b"} & set(stream.getvalue())
    assert "\x1b]" not in stream.getvalue()
