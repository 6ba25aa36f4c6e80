import pytest

from edgeveil.units import seconds_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.00084, "0.84 ms"),
        (0.6404, "640 ms"),
        (0.9996, "1 s"),
        (17.44, "17.4 s"),
        (59.96, "1 min"),
        (125, "2 min 5 s"),
        (3599.6, "1 h"),
        (11_040, "3 h 4 min"),
        (36_000_000, "10,000 h"),
    ],
)
def test_a_time_in_words(seconds, text):
    assert seconds_text(seconds) == text
