"""The worker of the demo: one handler for each kind of task in its workflows."""

from typing import Any

from callsheet.demo.media.mp4_video import Film, clip, montage
from callsheet.demo.media.picture import Picture
from callsheet.demo.media.script import Script
from callsheet.demo.media.sound import Tone
from callsheet.worker import Context, NonRetryableError, Worker

SCENES = 3
_SCENE_SECONDS = 1.5
_PREVIEW_EVERY = 4
worker = Worker("demo")


@worker.task("sketch")
def sketch(ctx: Context) -> dict[str, Any]:
    """Draw a landscape."""
    return _draw_picture(ctx, _prompt(ctx), "sketch.png")


@worker.task("tone")
def tone(ctx: Context) -> dict[str, Any]:
    """Generate a few bars of music."""
    sound = Tone(_prompt(ctx))
    for percent in sound.play():
        ctx.progress(percent, "playing")
    ctx.upload("tone.wav", sound.wav(), "audio/wav")
    return {"seconds": sound.seconds}


@worker.task("clip")
def film(ctx: Context) -> dict[str, Any]:
    """Render an animated landscape."""
    return _render_film(ctx, clip(_prompt(ctx)), "clip.mp4", "filming")


@worker.task("script")
def script(ctx: Context) -> dict[str, Any]:
    """Write the scenes of a short video."""
    generated = Script(_prompt(ctx), SCENES)
    for percent in generated.write():
        ctx.progress(percent, "writing")
    ctx.upload("script.txt", generated.text(), "text/plain")
    return {"scenes": [{"title": scene.title, "text": scene.text} for scene in generated.scenes()]}


@worker.task("storyboard")
def storyboard(ctx: Context) -> dict[str, Any]:
    """Draw the scene of the script with the number of this task."""
    scenes = [
        scene for earlier in ctx.previous_outputs() if earlier.stage == "script" for scene in earlier.output["scenes"]
    ]
    if ctx.task_no > len(scenes):
        raise NonRetryableError(f"The script has no scene {ctx.task_no}.", code="no_scene")
    scene = scenes[ctx.task_no - 1]
    return {"title": scene["title"]} | _draw_picture(ctx, scene["text"], f"scene-{ctx.task_no}.png")


@worker.task("render")
def render(ctx: Context) -> dict[str, Any]:
    """Render the pictures of the storyboard as a video with sound."""
    board = [file for earlier in ctx.previous_outputs() if earlier.stage == "storyboard" for file in earlier.files]
    if not board:
        raise NonRetryableError("The storyboard has no pictures.", code="no_pictures")
    sound = Tone(_prompt(ctx), _SCENE_SECONDS * len(board))
    for _ in sound.play():
        ctx.progress(0, "composing")
    video = montage([ctx.download(file).read_bytes() for file in board], sound.wav(), seconds=_SCENE_SECONDS)
    return _render_film(ctx, video, "short-video.mp4", "rendering")


def _prompt(ctx: Context) -> str:
    return str(ctx.input["prompt"])


def _draw_picture(ctx: Context, prompt: str, name: str) -> dict[str, Any]:
    picture = Picture(prompt)
    for percent in picture.draw():
        ctx.progress(percent, "drawing")
        ctx.preview(picture.preview())
    ctx.upload(name, picture.png(), "image/png")
    return {"prompt": prompt}


def _render_film(ctx: Context, video: Film, name: str, message: str) -> dict[str, Any]:
    for number, percent in enumerate(video.shoot()):
        ctx.progress(percent, message)
        if number % _PREVIEW_EVERY == 0:
            ctx.preview(video.preview())
    ctx.upload(name, video.mp4(), "video/mp4")
    return {"frames": len(video.frames)}
