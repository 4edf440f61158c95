"""The house stays one that can be lived in: no circle, no long file, no word for two things."""

from __future__ import annotations

from benchmarks.house import LONG_FILE, ROOT, arrows, circles, files, floors, homonyms


def test_rooms_of_models_stand_on_floors_and_no_arrow_goes_up() -> None:
    below = arrows(ROOT)
    heights = floors(below)
    assert circles(below) == []
    assert {"rollout", "planning", "cluster", "base"} <= heights.keys()
    assert all(heights[there] < heights[here] for here, all_there in below.items() for there in all_there)


def test_no_file_is_too_long_to_read_in_one_sitting() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files(ROOT)}
    assert {path: count for path, count in lines.items() if count > LONG_FILE} == {}


def test_no_word_names_two_things() -> None:
    assert homonyms(ROOT) == {}


def test_circles_and_floors_are_found() -> None:
    below = {"a": {"b"}, "b": {"a", "c"}, "c": set[str](), "d": {"a"}}
    assert circles(below) == [{"a", "b"}]
    assert floors(below) == {"a": 2, "b": 2, "c": 1, "d": 3}
