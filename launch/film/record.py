"""`tributary record RUN`: whole episodes as a video, in colour, at the environment's frame rate."""

from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFont
from rich.console import Console

from launch.files import check_can_be_written, finish, unfinished, write_json
from launch.film.stage import Frame, Performance
from launch.output import EXIT_DONE, EXIT_INTERRUPTED, print_line
from launch.provenance import provenance, provenance_text
from launch.results.evaluate import PlayArguments
from launch.run.folder import RunFolder
from shared.config.checks import Range
from shared.errors import counted
from shared.seeds import seed_global_generators

if TYPE_CHECKING:
    # Importing av takes 0.2 s, which `tributary record --help` saves.
    from av import VideoStream
    from av.container import OutputContainer

_CAPTION_SHARE = 0.06
# Viewers show delays below 2 hundredths of a second as 10.
_GIF_FRAMES_PER_SECOND = 25


@dataclass(frozen=True, kw_only=True)
class RecordArguments(PlayArguments):
    """Write whole episodes of a run's agent as a video. Ctrl-C keeps the frames so far."""

    episodes: Annotated[int, Range(minimum=1)] = 1
    """Episodes, one after another in one video."""
    output: Path | None = None
    """File to write, .mp4 or .gif. Default: videos/update-N.mp4 in the run folder, or in runs/zoo-NAME."""
    format: Literal["mp4", "gif"] = "mp4"
    """Format of the default file."""
    overlay: bool = False
    """Write the score and the network's value below each frame."""


def record(arguments: RecordArguments) -> int:
    seed_global_generators(arguments.seed or 0)
    return EXIT_INTERRUPTED if film(arguments, Console())["interrupted"] else EXIT_DONE


def film(arguments: RecordArguments, console: Console) -> dict[str, Any]:
    """Write the video. Returns the values of `--json`."""
    check_can_be_written(arguments.output, "output", (".mp4", ".gif"))
    folder = RunFolder(arguments.run)
    performance = Performance(arguments, arguments.episodes)
    description, stage = performance.description, performance.stage
    output = arguments.output or folder.output(f"videos/update-{description['version']}.{arguments.format}")
    check_can_be_written(output, "output")
    print_line(console, f"playing {description['environment']} with {performance.source}")
    returns = performance.returns
    writer = VideoWriter(output, stage.frames_per_second, provenance_text(**description), stage.enlargement)
    try:
        with closing(stage), writer:
            for step in performance.play(range(arguments.episodes)):
                caption = f"score {step.episode_return:g}   value {step.value:+.2f}" if arguments.overlay else None
                for frame in step.frames:
                    writer.add(frame, caption)
                if step.ended:
                    console.print(f"episode {len(returns) + 1}: return {step.episode_return:g}", highlight=False)
    except KeyboardInterrupt:
        what = f"the video has {counted(len(returns), 'whole episode')} and a part of the next one"
        console.print(f"interrupted: {what if writer.written else 'no video was written'}")
    result = {
        **description,
        "returns": returns,
        "frames": writer.frames,
        "seconds": float(writer.frames / stage.frames_per_second),
        "file": str(output) if writer.written else None,
        "interrupted": len(returns) < arguments.episodes,
        **provenance(),
    }
    if writer.written:
        rate = float(stage.frames_per_second)
        length = f"{writer.frames:,} frames, {result['seconds']:.1f} seconds at {rate:g} a second"
        print_line(console, f"{length}: {output}")
    write_json(arguments.json, result)
    return result


class VideoWriter:
    """Writes frames of one size. Use as a context: the file gets its name at the end, and after an interrupt too.

    `path` ends in .mp4 or .gif, which shows fewer `frames_per_second` at the same pace. `comment` is for the metadata,
    and `enlarge` the factor by which frames are enlarged, without smoothing.
    """

    def __init__(self, path: Path, frames_per_second: Fraction, comment: str, enlarge: int = 1) -> None:
        self._path, self._part, self._comment, self._enlarge = path, unfinished(path), comment, enlarge
        self._frames_per_second = frames_per_second
        self._write, self._every = self._encode, 1
        if path.suffix == ".gif":
            self._write, self._every = self._append, max(1, round(frames_per_second / _GIF_FRAMES_PER_SECOND))
        self._open_gif: BinaryIO | None = None
        self._last: Image.Image | None = None
        self._container: OutputContainer | None = None
        self._stream: VideoStream | None = None
        self.frames, self.written = 0, False

    def add(self, frame: Frame, caption: str | None = None) -> None:
        """Append a frame uint8 [height, width, 3], with a line of text below it."""
        if self.frames % self._every == 0:
            self._write(_picture(frame, self._enlarge, caption))
        self.frames += 1

    def __enter__(self) -> "VideoWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        whole = self.frames > 0 and (kind is None or issubclass(kind, KeyboardInterrupt))
        try:
            if self._open_gif is not None:
                self._open_gif.write(b";")
                self._open_gif.close()
            if self._container is not None and self._stream is not None:
                if whole:
                    self._container.mux(self._stream.encode(None))
                self._container.close()
            if whole:
                finish(self._part, self._path)
                self.written = True
        finally:
            self._part.unlink(missing_ok=True)

    def _append(self, picture: Image.Image) -> None:
        """Write the difference from the last picture. Pillow's `save` would hold all pictures until the end."""
        from PIL.GifImagePlugin import getdata, getheader

        indexed = picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=64)
        box = (0, 0, *picture.size)
        if self._open_gif is None:
            self._open_gif = self._part.open("wb")
            parts, _ = getheader(indexed.copy(), None, {"loop": 0, "comment": self._comment.encode()})
            self._open_gif.write(b"".join(parts))
        if self._last is not None:
            # An unchanged picture has its time, too.
            box = ImageChops.difference(picture, self._last).getbbox() or (0, 0, 1, 1)
        # In whole hundredths of a second, whose sum keeps the pace.
        start, end = (round(100 * n / self._frames_per_second) for n in (self.frames, self.frames + self._every))
        for data in getdata(indexed.crop(box), box[:2], duration=10 * (end - start), include_color_table=True):
            self._open_gif.write(data)
        self._last = picture

    def _encode(self, picture: Image.Image) -> None:
        import av

        if self._container is None or self._stream is None:
            # With the index at the beginning, a page can play the video while it loads.
            options = {"movflags": "+faststart+use_metadata_tags"}
            self._container = av.open(str(self._part), "w", options=options)
            self._container.metadata["comment"] = self._comment
            self._stream = self._container.add_stream("libx264", rate=self._frames_per_second)
            self._stream.width, self._stream.height = picture.width, picture.height
            self._stream.pix_fmt = "yuv420p"
            self._stream.options = {"crf": "20", "preset": "veryfast"}
        self._container.mux(self._stream.encode(av.VideoFrame.from_ndarray(np.asarray(picture), format="rgb24")))


def _picture(frame: Frame, enlarge: int, caption: str | None) -> Image.Image:
    picture = Image.fromarray(frame)
    if enlarge > 1:
        picture = picture.resize((picture.width * enlarge, picture.height * enlarge), Image.Resampling.NEAREST)
    bar = 0 if caption is None else max(24, round(_CAPTION_SHARE * picture.height))
    # The encoder requires even sizes.
    canvas = Image.new("RGB", (picture.width + picture.width % 2, (picture.height + bar + 1) // 2 * 2), "black")
    canvas.paste(picture, (0, 0))
    if caption is not None:
        font = ImageFont.load_default(bar * 0.62)
        ImageDraw.Draw(canvas).text((bar // 3, picture.height + bar // 2), caption, "white", font, anchor="lm")
    return canvas
