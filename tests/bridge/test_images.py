"""Images of prompts and of tools reach a vision model as pixels; a text model is told what it does not see."""

import pytest
from training import END, IGNORED, call, make_trainer

from ors_client.record import read
from trl_bridge import OpenRewardSpec
from trl_bridge._rollout.episode import OVER

pytestmark = [pytest.mark.filterwarnings(warning) for warning in IGNORED]

IMAGES = "imagesenvironment"
COLOURS = {0: (255, 0, 0), 1: (0, 255, 0), 2: (0, 0, 255)}


def colours(content):
    """Name what content blocks show: a text by itself, an image by the colour of its first pixel."""
    return [part["text"] if part["type"] == "text" else part["image"].getpixel((0, 0)) for part in content]


# --- What the trainer is handed


def test_prompt_with_an_image_is_content_blocks(make_spec, server):
    environment = make_spec(server.url, env_name=IMAGES, images=True).environment_factory()
    assert colours(environment.reset(task_index=1)) == ["Paint this colour.", (0, 255, 0)]


def test_outputs_keep_texts_and_images_in_order(make_spec, server):
    environment = make_spec(server.url, env_name=IMAGES, images=True).environment_factory()
    environment.reset(task_index=0)
    assert colours(environment.look()) == [(255, 0, 0)]
    assert colours(environment.gallery()) == [(1, 2, 3), "between", (4, 5, 6), (7, 8, 9)]
    assert colours(environment.paint(red=1, green=1, blue=1)) == ["painted", (1, 1, 1)]


def test_text_model_is_told_how_many_images_it_does_not_see(make_spec, server):
    environment = make_spec(server.url, env_name=IMAGES).environment_factory()
    assert environment.reset(task_index=0) == "Paint this colour.\n[1 image left out: image/png]"
    assert environment.look() == "[1 image left out: image/png]"
    assert environment.gallery() == ("[1 image left out: image/png]\nbetween\n[2 images left out: image/png]")


def test_characters_that_a_vision_model_was_not_shown_count_for_nothing(make_spec, ours):
    limits = {"max_output_chars": 5, "max_episode_chars": 13}
    environment = make_spec(ours.url, env_name=IMAGES, images=True, **limits).environment_factory()
    environment.reset(task_index=0)
    for shown in (5, 5, 3):  # of 13; the texts have 7 each
        assert len(colours(environment.gallery())[1]) == shown
        assert len(environment.last_output) == shown
    assert environment.gallery() == OVER


# --- What the model sees


def look_then_paint(text):
    """Look at the picture again, then paint it in red."""
    turns = text.count("<tool_response>")
    return (call("look"), call("paint", red=255, green=0, blue=0), "Done.")[min(turns, 2)] + END


class Eye:
    """Notes the colours of the images that the vision tower is given."""

    def __init__(self, model):
        self.seen = []
        model.model.visual.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, _tower, arguments, named):
        pixels = arguments[0] if arguments else named["hidden_states"]
        grid = arguments[1] if len(arguments) > 1 else named["grid_thw"]
        for patches in pixels.split(grid.prod(-1).tolist()):
            # Every patch holds red, then green, then blue; each image is of one colour, normalised around zero.
            channels = patches.reshape(len(patches), 3, -1).mean((0, 2))
            self.seen.append(tuple(bool(channel > 0) for channel in channels))


@pytest.mark.parametrize("together", [False, True])
def test_vision_model_is_trained_on_the_pixels_of_prompts_and_of_tools(ours, tmp_path, together):
    from vision import build_processor, build_vision_model

    processor = build_processor([call("look"), "Paint this colour."])
    model = build_vision_model(processor)
    eye = Eye(model)
    with OpenRewardSpec(ours.url, env_name=IMAGES, images=True, record=tmp_path / "record") as spec:
        trainer = make_trainer(
            tmp_path,
            spec,
            policy=look_then_paint,
            model=model,
            processor=processor,
            arguments={"shuffle_dataset": False, "max_steps": 1, "chat_template_kwargs": {}},
        )
        if together:
            spec.attach(trainer)
        trainer.train()
    (step,) = [entry for entry in trainer.state.log_history if "reward" in entry]
    # Tasks red and green, two rollouts each: red wins where red was asked for.
    assert step["reward"] == 0.5
    assert step["tools/call_frequency"] == 2.0
    assert step["tools/failure_frequency"] == 0.0
    red, green = (True, False, False), (False, True, False)
    # In each rollout: the prompt, the look, and the painting, which is red. The trainer shuffles rollouts.
    rollouts = [tuple(eye.seen[start : start + 3]) for start in range(0, len(eye.seen), 3)]
    assert sorted(rollouts) == [(green, green, red)] * 2 + [(red, red, red)] * 2
    assert len(list(read(tmp_path / "record"))) == 4
