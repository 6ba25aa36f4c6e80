"""The public context of a small job, for tests of methods."""

from edgeveil.parts.features import Identity, IdentityParameters
from edgeveil.parts.method_context import MethodContext


def context(**changes):
    plain = {
        "epsilon": 4.0,
        "delta": 1e-5,
        "max_participations": 2,
        "classes": 3,
        "input_shape": (4,),
        "features": Identity(IdentityParameters()),
        "nominal_records": 20,
        "devices": 4,
    }
    return MethodContext(**plain | changes)
