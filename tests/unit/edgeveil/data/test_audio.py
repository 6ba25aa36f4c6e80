"""Recordings as numbers: by hand, at any rate, alone from the recording, and never a failure."""

import io
import json
import struct

import numpy as np
import pytest
import soundfile

from edgeveil.data.audio import FULL_SCALE, AudioForm, encode_audio, resampled
from edgeveil.data.check import schema_problems
from edgeveil.data.schema import DataSchema
from edgeveil.data.split import RecordLimit
from edgeveil.errors import DataError
from edgeveil.parts.sources import SOURCES, Origin, load_records
from edgeveil.parts.sources.audio import MAX_SAMPLES, encode_recordings

FORM = AudioForm(seconds=0.5)


def tone(pitch_hz, rate_hz, seconds=0.5, loudness=0.5):
    t = np.arange(round(rate_hz * seconds)) / rate_hz
    return loudness * np.sin(2 * np.pi * pitch_hz * t)[:, None]


def schema(**audio):
    label = {"classes": ["low", "high"]}
    given = {"origin": "public", "label": label, "audio": {"seconds": 0.5, **audio}}
    return DataSchema.model_validate_json(json.dumps(given))


@pytest.mark.parametrize("rate_hz", [4000, 8000, 11025, 22050, 44100, 48000])
def test_a_tone_stays_the_tone_at_any_rate(rate_hz):
    found = resampled(
        np.rint(tone(440, rate_hz)[:, 0] * FULL_SCALE).astype(np.int64), rate_hz, FORM
    )
    wanted = tone(440, 8000)[:, 0] * FULL_SCALE
    assert found.shape == (4000,)
    assert np.abs(found - wanted)[200:-200].max() < 0.002 * FULL_SCALE


def test_what_a_lower_rate_cannot_hold_is_taken_out():
    high = np.rint(tone(6000, 22050)[:, 0] * FULL_SCALE).astype(np.int64)
    assert np.abs(resampled(high, 22050, FORM))[200:-200].max() < 0.001 * FULL_SCALE


def test_the_band_of_a_tone_is_the_loudest_and_levels_are_decibels():
    loudest = [
        encode_audio(tone(pitch, 8000), 8000, FORM)[:, 10].argmax()
        for pitch in (150, 400, 1000, 2000, 3500)
    ]
    assert loudest == sorted(set(loudest))
    both = tone(1000, 8000, loudness=0.5) + tone(3000, 8000, loudness=0.05)
    levels = encode_audio(both, 8000, FORM)[:, 10]
    assert levels.max() == encode_audio(both / 7, 8000, FORM)[:, 10].max()  # loudness is evened out
    assert levels[:28].max() - levels[30:].max() == pytest.approx(20 * 255 / 50, abs=6)
    assert not encode_audio(np.zeros((10, 1)), 8000, FORM).any()


def test_length_and_channels():
    waves = AudioForm(seconds=0.5, form="waveform")
    short, long = tone(300, 8000, 0.1), tone(300, 8000, 2)
    assert not encode_audio(short, 8000, waves)[800:].any()
    np.testing.assert_array_equal(
        encode_audio(long, 8000, waves), encode_audio(long[:4000], 8000, waves)
    )
    both = np.hstack([tone(300, 8000), tone(300, 8000)])
    np.testing.assert_array_equal(
        encode_audio(both, 8000, waves), encode_audio(both[:, :1], 8000, waves)
    )


def written(folder):
    """Recordings of every kind; returns (origin, usable by name)."""
    usable = {}
    for name, sound, rate, kind in (
        ("a.wav", tone(300, 8000), 8000, "PCM_16"),
        ("b.flac", tone(300, 22050, 2), 22050, "PCM_24"),
        ("c.wav", tone(300, 16000) * 1e30, 16000, "FLOAT"),
        ("d.wav", np.full((100, 1), np.nan), 8000, "FLOAT"),
        ("e.wav", np.r_[tone(300, 8000), [[np.inf]]], 8000, "FLOAT"),
        ("f.wav", np.zeros((0, 1)), 8000, "PCM_16"),
        ("g.wav", tone(300, 500), 500, "PCM_16"),
        ("h.wav", tone(1e-42, 8000), 8000, "DOUBLE"),
        ("j.wav", tone(300, 191_999), 191_999, "PCM_16"),  # its filters would take 234 MB
    ):
        (folder / "low").mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / "low" / name, sound, rate, kind)
        usable[name] = name in "a.wav b.flac c.wav h.wav"
    (folder / "low" / "i.wav").write_bytes(b"RIFF")
    (folder / "other").mkdir()
    soundfile.write(folder / "other" / "k.wav", tone(300, 8000), 8000)
    return Origin(path=folder, schema=schema()), {**usable, "i.wav": False, "k.wav": False}


def test_no_recording_stops_a_device_and_check_names_the_unusable(tmp_path):
    origin, usable = written(tmp_path)
    found = load_records("audio", origin)
    learned = np.isfinite(found.x).all(axis=(1, 2)) & (found.y >= 0)
    assert learned.tolist() == list(usable.values())
    faults = SOURCES["audio"].faults(origin)
    assert [any(f"/{name}:" in one for one in faults) for name in usable] == [
        not sound for sound in usable.values()
    ]
    told = schema_problems(origin.schema, SOURCES["audio"].tallies(origin, origin.schema))
    assert [line.split(" recordings")[0] for line in told] == ["2 of 11", "1 of 11"]


def test_no_recording_changes_another(tmp_path):
    origin, _ = written(tmp_path)
    whole, files = load_records("audio", origin), sorted(tmp_path.rglob("*.*"))
    limit = RecordLimit(4, bytes(32))
    few = load_records("audio", Origin(path=tmp_path, schema=origin.schema, limit=limit))
    np.testing.assert_array_equal(few.x, whole.x[limit.kept(whole.places)])
    for at, file in enumerate(files):
        content = file.read_bytes()
        file.unlink()
        rest = load_records("audio", origin)
        np.testing.assert_array_equal(rest.x, np.delete(whole.x, at, axis=0))
        np.testing.assert_array_equal(rest.places, np.delete(whole.places, at, axis=0))
        file.write_bytes(content)


def test_a_header_that_promises_much_costs_no_memory(tmp_path):
    file = tmp_path / "bomb.wav"
    sound = io.BytesIO()
    soundfile.write(sound, np.zeros((100, 1)), 192_000, format="WAV")
    raw = bytearray(sound.getvalue())
    raw[22:24] = struct.pack("<H", 1000)  # channels
    file.write_bytes(raw)
    assert MAX_SAMPLES < 192_000 * 1000 * 0.5
    x, (read,) = encode_recordings([file], schema())
    assert read.fault
    assert np.isnan(x).all()


def test_without_a_schema_the_form_is_unknown(tmp_path):
    with pytest.raises(DataError, match=r"data\.source: audio"):
        load_records("audio", Origin(path=tmp_path))
