"""No deadlines: how long an example takes says nothing about its correctness."""

from hypothesis import settings

settings.register_profile("protocol", deadline=None)
settings.load_profile("protocol")
