"""What an owner's own function returns (`python: module:function`)."""

from __future__ import annotations

from importlib import import_module

import numpy as np

from edgeveil.data.records import MAX_BYTES, Records, as_records, require_room
from edgeveil.errors import OF_OTHERS_CODE, DataError, RecordsError
from edgeveil.parts.sources.source import Origin, SourcePart


def read_python(origin: Origin) -> Records:
    """What the owner's `module:function` gives without arguments: (x, y), two arrays whose type and
    shape state the form."""
    where = f"data.source python: {origin.function or ''}"
    module_name, _, function_name = (origin.function or "").partition(":")
    if not module_name or not function_name:
        raise DataError("names no function", where=where, fix="write python: module:function")
    try:
        function = getattr(import_module(module_name), function_name)
    except OF_OTHERS_CODE as error:  # the owner's module may raise anything
        raise DataError(
            f"cannot be imported, {type(error).__name__}: {error}",
            where=where,
            fix="install the module, check both names",
        ) from error
    try:
        found = function()
    except OF_OTHERS_CODE as error:  # the owner's code may raise anything
        raise RecordsError(
            f"raised {type(error).__name__}: {error}", where=where, fix="correct the function"
        ) from error
    return given_records(found, where, origin.max_bytes)


def given_records(found: object, where: str, max_bytes: int = MAX_BYTES) -> Records:
    """An owner's (x, y) or Records, checked; `where` names the function. Raises DataError."""
    if isinstance(found, Records):
        found = (found.x, found.y)
    if not isinstance(found, tuple) or len(found) != 2:
        raise DataError("did not return (x, y)", where=where, fix="return two arrays")
    if any(isinstance(part, list | tuple) for part in found):
        raise DataError(
            "returned a list, whose form would follow from its records",
            where=where,
            fix="return two arrays, numpy.asarray(x, numpy.float32) and numpy.asarray(y)",
        )
    try:
        x, y = np.asarray(found[0]), np.asarray(found[1])
    except ValueError as error:
        raise DataError(str(error), where=where, fix="return two arrays of numbers") from error
    require_room(x.shape, 4, max_bytes, where)
    return as_records(x, y, where)


PART = SourcePart(
    name="python",
    read=read_python,
    source="the user's own code",
    needs="`python: module:function`, installed",
    summary="What a function returns, two arrays (x, y).",
    example='local_run: {data: {source: "python: my_records:load"}}',
)
