"""Recordings: WAV and FLAC files, one folder per class, read by a job's schema.

An unreadable recording, or one with NaN or infinity, becomes a record that learning drops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.audio import MOST_PHASES, AudioForm, encode_audio
from edgeveil.data.encoding import Encoded
from edgeveil.data.records import MAX_BYTES, Records, require_room
from edgeveil.data.schema import DataSchema
from edgeveil.errors import DataError
from edgeveil.parts.sources.images import listed_files, stored_files
from edgeveil.parts.sources.source import Origin, SourcePart, require_library

AUDIO_ENDINGS = frozenset({".wav", ".flac"})
LARGEST_RATE_HZ, MAX_SAMPLES = 192_000, 1 << 24  # of one recording
AUDIO_FORMATS = ("WAV", "WAVEX", "FLAC", "RF64")


def _read(origin: Origin) -> tuple[Encoded, list[str]]:
    """Return records x (n, *shape of the schema's `audio`), classes by folder, and faults.

    Recordings of other folders have the label -1. A fault, `file: why`, is for the owner's console
    only. Raises DataError without soundfile, a schema or the folder, or beyond `max_bytes`."""
    schema = origin.schema
    if schema is None or schema.audio is None:
        fix = "take a job whose data.schema has audio: {rate_hz: 8000, seconds: 1}"
        raise DataError("is read by a job's schema alone", where="data.source: audio", fix=fix)
    listed = listed_files(origin.path, schema.label.names, AUDIO_ENDINGS)
    places = stored_files(listed)
    if origin.limit is not None:
        kept = origin.limit.kept(places)
        listed, places = [listed[index] for index in kept], places[kept]
    files, most = [file for file, _ in listed], origin.max_bytes
    x, read = encode_recordings(files, schema, most, str(origin.path))
    y, faults = np.array([label for _, label in listed], np.int64), []
    for (file, label), one in zip(listed, read, strict=True):
        if fault := one.fault or ("its folder is not one of the classes" if label < 0 else ""):
            faults.append(f"{file}: {fault}")
    return Encoded(Records(x, y, places), remarks=remarks_on(read, schema)), faults


class Decoded(NamedTuple):
    """Remarks on one recording; with a `fault` its record is NaN."""

    fault: str = ""
    resampled: bool = False
    cut: bool = False


def remarks_on(read: Sequence[Decoded], schema: DataSchema) -> tuple[str, ...]:
    """Return counts of the recordings that were resampled or cut, a line for each."""
    form = schema.audio or AudioForm()
    rate, length = f"{form.rate_hz} Hz", f"{form.seconds:g} s"
    counts = (
        (sum(one.resampled for one in read), f"have another rate than {rate}: resampled"),
        (sum(one.cut for one in read), f"are longer than {length}: cut there"),
    )
    return tuple(f"{n} of {len(read)} recordings {what}" for n, what in counts if n)


def encode_recordings(
    files: Sequence[Path | IO[bytes]],
    schema: DataSchema,
    max_bytes: int = MAX_BYTES,
    where: str = "the recordings",
) -> tuple[NDArray[np.float32], list[Decoded]]:
    """Return recordings as a schema's records, NaN for an unusable one. Raises DataError."""
    require_library("soundfile", "audio")
    require_room((len(files), *schema.input_shape), 4, max_bytes, where)
    x = np.full((len(files), *schema.input_shape), np.nan, np.float32)
    form = schema.audio or AudioForm()
    return x, [_into(record, file, form) for record, file in zip(x, files, strict=True)]


def _into(record: NDArray[np.float32], file: Path | IO[bytes], form: AudioForm) -> Decoded:
    import soundfile

    try:
        with soundfile.SoundFile(file) as opened:
            rate, channels = opened.samplerate, opened.channels
            wanted = math.ceil(form.seconds * rate) + rate // 8  # past the end, for the filter
            if opened.format not in AUDIO_FORMATS:
                return Decoded(f"is {opened.format}, not WAV or FLAC")
            if not 1000 <= rate <= LARGEST_RATE_HZ or wanted * channels > MAX_SAMPLES:
                return Decoded(f"has {rate} Hz and {channels} channels, which is too much")
            if max(rate, form.rate_hz) // math.gcd(rate, form.rate_hz) > MOST_PHASES:
                return Decoded(f"has {rate} Hz, in no simple ratio to {form.rate_hz} Hz")
            sound = opened.read(wanted, dtype="float32", always_2d=True)
            cut = opened.frames > math.ceil(form.seconds * rate)
    except Exception as error:  # a decoder may raise anything; no recording may stop the device
        return Decoded(f"cannot be read ({type(error).__name__})")
    if not len(sound):
        return Decoded("holds no sound")
    if not np.isfinite(sound).all():
        return Decoded("holds NaN or infinity")
    record[...] = encode_audio(sound, rate, form)
    return Decoded(resampled=rate != form.rate_hz, cut=cut)


PART = SourcePart(
    name="audio",
    read=lambda origin: _read(origin)[0].records,
    place="folder",
    faults=lambda origin: _read(origin)[1],
    tallies=lambda origin, _schema: _read(origin)[0],
    by_schema="audio",
    source="the user's own data",
    needs="a folder for each of the schema's classes; pip install 'edgeveil[audio]'",
    summary="WAV and FLAC recordings, brought to one rate and length.",
    example="local_run: {data: {source: audio, path: recordings}}",
)
