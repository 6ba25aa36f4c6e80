"""Image folders: pictures of the formats of Pillow, one folder per class, resized and recoloured.

Size and colours are set by the owner. An unreadable picture becomes a record that learning drops.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.encoding import NO_CLASS, asked_pictures, digest_rows, stored_digest
from edgeveil.data.records import MAX_BYTES, Records, as_records, require_room
from edgeveil.data.schema import PICTURE_PARTS, DataSchema, PictureForm
from edgeveil.errors import DataError
from edgeveil.parts.sources.source import Origin, SourcePart, require_folder, require_library

if TYPE_CHECKING:
    from edgeveil.config.data import Images

# What Pillow decodes by itself; EPS, for example, would start another program. Fixed, so that a
# device's records do not depend on how its Pillow was built.
_ENDINGS_OF = {
    "PNG": "png apng", "JPEG": "jpg jpeg jpe jfif", "GIF": "gif", "BMP": "bmp", "DIB": "dib",
    "TIFF": "tif tiff", "WEBP": "webp", "PPM": "pbm pgm ppm pnm pfm", "JPEG2000": "jp2 j2k jpx jpf",
    "AVIF": "avif", "TGA": "tga", "PCX": "pcx", "SGI": "sgi rgb bw", "ICO": "ico", "QOI": "qoi",
    "DDS": "dds", "PSD": "psd", "XBM": "xbm", "XPM": "xpm", "MPO": "mpo", "FITS": "fit fits",
}  # fmt: skip
FORMATS = tuple(_ENDINGS_OF)
ENDINGS = frozenset(f".{one}" for some in _ENDINGS_OF.values() for one in some.split())
MAX_PIXELS = 1 << 26  # of one stored picture

_Labelled = tuple[Path, int]  # a picture and its class


def _read(origin: Origin) -> tuple[Records, list[str]]:
    """Return x (n, height, width), in colour (n, 3, height, width), float32 in 0..255, and faults.

    Classes are numbered by their given names, not by the folders present; pictures of other folders
    have the label -1. A fault, `file: why`, is for the owner's console only. Raises DataError
    without Pillow, folder or classes, or beyond `max_bytes`."""
    require_library("PIL", "images")
    form = origin.images if origin.schema is None else _form_of(origin.schema)
    if form is None:
        raise DataError("is not set", where="data.images", fix="write images: {size: [28, 28]}")
    if form.classes is None:
        what = "is not set, and the existing folders must not define the classes"
        fix = "name the classes' folders, class 0 first, such as classes: [cat, dog]"
        raise DataError(what, where="data.images.classes", fix=fix)
    listed, places = listed_files(origin.path, form.classes, ENDINGS), None
    if origin.schema is not None:
        places = stored_files(listed)
        if origin.limit is not None:
            kept = origin.limit.kept(places)
            listed, places = [listed[index] for index in kept], places[kept]
    if origin.schema is not None and origin.schema.raw:
        parts = encode_files([file for file, _ in listed], None, origin.max_bytes)
        named = [file.parent.name for file, _ in listed]
        x = asked_pictures(
            origin.schema, parts, lambda of: (of.get(one, NO_CLASS) for one in named)
        )
        return Records(x, np.zeros(len(x), np.int64), places), []
    height, width = form.size
    shape = (3, height, width) if form.colours == "rgb" else (height, width)
    require_room((len(listed), *shape), 4, origin.max_bytes, str(origin.path))
    x = np.full((len(listed), *shape), np.nan, np.float32)
    faults = []
    for record, (file, label) in zip(x, listed, strict=True):
        fault = _into(record, file, form) if label >= 0 else "its folder is not one of the classes"
        if fault:
            faults.append(f"{file}: {fault}")
    y = np.array([label for _, label in listed], np.int64)
    found = as_records(x, y, str(origin.path))
    return (found if places is None else Records(found.x, found.y, places)), faults


def class_folders(folder: Path | None) -> list[Path]:
    place = require_folder(folder, "name the one that holds a folder of files for each class")
    return sorted(p for p in place.iterdir() if p.is_dir() and not p.name.startswith("."))


def listed_files(
    folder: Path | None, classes: tuple[str, ...], endings: frozenset[str]
) -> list[_Labelled]:
    """Return files of the folders of a folder with the number of its class, or -1."""
    numbers = {name: number for number, name in enumerate(classes)}
    return [
        (file, numbers.get(one.name, -1))
        for one in class_folders(folder)
        for file in sorted(one.iterdir())
        if file.suffix.lower() in endings and file.is_file()
    ]


def _into(record: NDArray[np.float32], file: Path | IO[bytes], form: Images | None) -> str:
    from PIL import Image

    try:
        with Image.open(file, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                return f"{image.width} by {image.height} pixels, at most {MAX_PIXELS} are read"
            record[:] = _parts(image) if form is None else _values(image, form)
    except Exception as error:  # a decoder may raise anything; no picture may stop the device
        return f"cannot be read ({type(error).__name__})"
    return ""


def has_colours(image: Any) -> bool:
    return image.mode not in ("1", "L", "LA", "La", "F") and not image.mode.startswith("I")


def _parts(image: Any) -> tuple[float, ...]:
    """Return PICTURE_PARTS of a picture, after it is read as a whole."""
    grey = _recoloured(image, "grey")
    brightness = np.asarray(grey).mean(dtype=np.float64)
    return image.height, image.width, 3 if has_colours(image) else 1, float(brightness)


def _recoloured(image: Any, colours: str) -> Any:
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits a pixel, which conversion would cut off at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("RGB" if colours == "rgb" else "L")


def _values(image: Any, form: Images) -> NDArray[np.float32]:
    from PIL import Image

    plain, (height, width) = _recoloured(image, form.colours), form.size
    if plain.size != (width, height):
        plain = plain.resize((width, height), Image.Resampling.BILINEAR)
    values = np.asarray(plain, np.float32)
    return np.moveaxis(values, -1, 0) if form.colours == "rgb" else values


def _form_of(schema: DataSchema) -> Images:
    from edgeveil.config.data import Images

    image = schema.image or PictureForm(size=(1, 1))
    colours: Literal["grey", "rgb"] = "rgb" if image.channels > 1 else "grey"
    return Images.model_construct(size=image.size, colours=colours, classes=schema.label.names)


def stored_files(listed: list[_Labelled]) -> NDArray[np.float32]:
    digests = bytearray()
    for file, _ in listed:
        try:
            with file.open("rb") as stream:  # not read whole: a picture may be of any size
                digests += stored_digest([hashlib.file_digest(stream, "sha256").digest()])
        except OSError:
            digests += stored_digest([])  # a record that learning drops
    return digest_rows(digests)


def stored_pictures(contents: Sequence[bytes | None]) -> NDArray[np.float32]:
    """Return `Records.stored` of the contents of picture files; None for a missing one."""
    digests = [[] if one is None else [hashlib.sha256(one).digest()] for one in contents]
    return digest_rows(b"".join(map(stored_digest, digests)))


def encode_files(
    files: Sequence[Path | IO[bytes]], schema: DataSchema | None, max_bytes: int = MAX_BYTES
) -> NDArray[np.float32]:
    """Return pictures as a schema's records, or their PICTURE_PARTS (n, 4).

    NaN for an unreadable picture. Raises DataError."""
    require_library("PIL", "images")
    form = None if schema is None else _form_of(schema)
    shape = (len(files), *((len(PICTURE_PARTS),) if schema is None else schema.input_shape))
    require_room(shape, 4, max_bytes, "the pictures")
    x = np.full(shape, np.nan, np.float32)
    for record, file in zip(x, files, strict=True):
        _into(record, file, form)
    return x


def files_below(folder: Path, endings: frozenset[str] = ENDINGS) -> list[Path]:
    inside = sorted(folder.iterdir())
    found = [*inside, *(file for one in inside if one.is_dir() for file in sorted(one.iterdir()))]
    return [file for file in found if file.suffix.lower() in endings and file.is_file()]


PART = SourcePart(
    name="images",
    read=lambda origin: _read(origin)[0],
    place="folder",
    reads=("images",),
    faults=lambda origin: _read(origin)[1],
    by_schema="image",
    source="the user's own data",
    needs="a folder for each of images.classes; pip install 'edgeveil[images]'",
    summary="Pictures of the formats of Pillow, brought to one size.",
    example="local_run: {data: {source: images, path: pictures, images: {size: [28, 28]}}}",
)
