"""Scripts: the requested number of different scenes, in one place and through one day."""

import pytest

from callsheet.demo.media.scenery.mood import hour_of, land_of
from callsheet.demo.media.script import SCENES_MAX, Scene, Script
from callsheet.demo.media.seeded_random import Unfinished


def write_scenes(prompt: str, count: int) -> list[Scene]:
    script = Script(prompt, count)
    list(script.write())
    return script.scenes()


@pytest.mark.parametrize("count", [1, 4, SCENES_MAX])
def test_a_script_has_the_requested_number_of_different_scenes(count: int):
    scenes = write_scenes("a fox looks for its friend", count)
    assert len({scene.title for scene in scenes}) == len({scene.text for scene in scenes}) == len(scenes) == count
    assert all("a fox looks for its friend" in scene.text and scene.text.endswith(".") for scene in scenes)


@pytest.mark.parametrize("count", [0, -1, SCENES_MAX + 1])
def test_a_script_without_scenes_or_with_too_many_is_rejected(count: int):
    with pytest.raises(ValueError, match="scenes"):
        Script("a fox", count)


def test_the_scenes_cover_one_day_in_one_place():
    texts = [scene.text for scene in write_scenes("a fox looks for its friend", 4)]
    assert [hour_of(text) for text in texts] == ["dawn", "noon", "dusk", "night"]
    assert len({land_of(text) for text in texts}) == 1
    assert None not in {land_of(text) for text in texts}


def test_the_place_and_the_hour_of_the_prompt_are_kept():
    texts = [scene.text for scene in write_scenes("the sea at night", 4)]
    assert {(land_of(text), hour_of(text)) for text in texts} == {("sea", "night")}
    assert all(text.count("night") == 1 for text in texts)


def test_the_same_prompt_gives_the_same_script_and_another_prompt_a_different_one():
    assert write_scenes("a fox", 5) == write_scenes("a fox", 5)
    titles = {tuple(scene.title for scene in write_scenes(f"a fox {number}", 3)) for number in range(8)}
    assert len(titles) > 4


def test_progress_rises_to_100_and_the_scenes_exist_only_at_the_end():
    script = Script("a fox", 3)
    steps = script.write()
    assert next(steps) == 33
    with pytest.raises(Unfinished):
        script.scenes()
    assert list(steps) == [66, 100]
    assert script.text().decode().startswith(f"1. {script.scenes()[0].title}\n{script.scenes()[0].text}\n\n2. ")


@pytest.mark.parametrize("prompt", ["", " \n ", "x" * 5000, "Stop!?", "\ud800 alone"])
def test_any_text_is_accepted_as_a_prompt(prompt: str):
    (scene,) = write_scenes(prompt, 1)
    assert 20 < len(scene.text) < 300
    assert "!?" not in scene.text
