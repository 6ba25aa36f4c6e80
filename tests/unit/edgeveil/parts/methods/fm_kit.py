"""The context of a job on two values, and one like a job on digits."""

from tests.kits.method_context import context as made_context

PLAIN = {"epsilon": 8.0, "max_participations": 15, "classes": 2, "input_shape": (2,)}
DIGITS = {"classes": 10, "input_shape": (8, 8), "nominal_records": 64, "devices": 20}


def context(**changes):
    return made_context(**{**PLAIN, "nominal_records": 1, "devices": 1, **changes})
