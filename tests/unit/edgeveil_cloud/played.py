"""Async tests, and tests of what is served while they run."""

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any

Served = Callable[..., AbstractAsyncContextManager[dict[str, Any]]]


def played(served, test=None, **options):
    """Run an async test, its fixtures beside the arguments that `served(**options)` gives it."""
    if test is None:
        return partial(played, served, **options)
    signature = inspect.signature(test)

    def run(**fixtures):
        async def body():
            async with served(**options) as given:
                own = {name: one for name, one in given.items() if name in signature.parameters}
                await test(**own, **fixtures)

        asyncio.run(body())

    names = getattr(served, "gives", ())
    fixtures = [one for name, one in signature.parameters.items() if name not in names]
    run.__signature__ = signature.replace(parameters=fixtures)
    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    return run


def alone(**_options):
    """Nothing is served."""
    return nullcontext({})


in_loop = partial(played, alone)
