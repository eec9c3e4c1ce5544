"""Write frames as MP4 or GIF. A file appears under its name only when it is whole."""

from fractions import Fraction
from pathlib import Path
from types import TracebackType

import av
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

Frame = npt.NDArray[np.uint8]

_CAPTION_SHARE = 0.06
# Viewers take delays below 2 hundredths of a second for 10.
_GIF_FRAMES_PER_SECOND = 25


class VideoWriter:
    """Writes frames of one size. Use as a context: an interrupt ends the file where it is, whole.

    Args:
        path: with the suffix .mp4 or .gif.
        frames_per_second: of the environment. A GIF shows fewer, at the same pace.
        comment: how the video was made, kept in the file's metadata.
        enlarge: factor by which frames are enlarged, without smoothing.
    """

    def __init__(self, path: Path, frames_per_second: int, comment: str, enlarge: int = 1) -> None:
        self._path, self._enlarge, self._comment = path, enlarge, comment
        self._part = path.with_name(f"{path.stem}.part{path.suffix}")
        self._gif = path.suffix == ".gif"
        self._frames_per_second = frames_per_second
        self._pictures: list[Image.Image] = []
        self._container: av.container.OutputContainer | None = None
        self._stream: av.VideoStream | None = None
        self.frames = 0

    @property
    def seconds(self) -> float:
        """Length of the video so far."""
        return self.frames / self._frames_per_second

    def add(self, frame: Frame, caption: str | None = None) -> None:
        """Append uint8 [height, width, 3], with a line of text below it."""
        keep_every = max(1, round(self._frames_per_second / _GIF_FRAMES_PER_SECOND)) if self._gif else 1
        if self.frames % keep_every == 0:
            picture = _picture(frame, self._enlarge, caption)
            if self._gif:
                self._pictures.append(picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=64))
            else:
                self._encode(picture)
        self.frames += 1

    def __enter__(self) -> "VideoWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.frames == 0 or (kind is not None and not issubclass(kind, KeyboardInterrupt)):
            if self._container is not None:
                self._container.close()
            self._part.unlink(missing_ok=True)
            return
        if self._gif:
            keep_every = max(1, round(self._frames_per_second / _GIF_FRAMES_PER_SECOND))
            self._pictures[0].save(
                self._part,
                save_all=True,
                append_images=self._pictures[1:],
                duration=round(1000 * keep_every / self._frames_per_second),
                loop=0,
                comment=self._comment.encode(),
            )
        else:
            assert self._container is not None
            assert self._stream is not None
            self._container.mux(self._stream.encode(None))
            self._container.close()
        self._part.replace(self._path)

    def _encode(self, picture: Image.Image) -> None:
        if self._container is None or self._stream is None:
            # The index first, so that a page can play the video while it loads.
            options = {"movflags": "+faststart+use_metadata_tags"}
            self._container = av.open(str(self._part), "w", options=options)
            self._container.metadata["comment"] = self._comment
            self._stream = self._container.add_stream("libx264", rate=Fraction(self._frames_per_second))
            self._stream.width, self._stream.height = picture.width, picture.height
            self._stream.pix_fmt = "yuv420p"
            self._stream.options = {"crf": "20", "preset": "veryfast"}
        self._container.mux(self._stream.encode(av.VideoFrame.from_ndarray(np.asarray(picture), format="rgb24")))


def _picture(frame: Frame, enlarge: int, caption: str | None) -> Image.Image:
    picture = Image.fromarray(frame)
    if enlarge > 1:
        picture = picture.resize((picture.width * enlarge, picture.height * enlarge), Image.Resampling.NEAREST)
    bar = 0 if caption is None else max(24, round(_CAPTION_SHARE * picture.height))
    # The encoder takes even sizes only.
    canvas = Image.new("RGB", (picture.width + picture.width % 2, (picture.height + bar + 1) // 2 * 2), "black")
    canvas.paste(picture, (0, 0))
    if caption is not None:
        font = ImageFont.load_default(bar * 0.62)
        ImageDraw.Draw(canvas).text((bar // 3, picture.height + bar // 2), caption, "white", font, anchor="lm")
    return canvas
