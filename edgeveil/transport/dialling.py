"""Dialling (DNS, TCP, TLS) blocks: it runs in a thread, and is given up after a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from edgeveil.transport import faults
from edgeveil.transport.link import BrokerAddress

_DIALLERS = ThreadPoolExecutor(max_workers=16, thread_name_prefix="edgeveil-dial")


async def dial_in_thread(
    dial: Callable[[], None],
    abandon: Callable[[], None],
    address: BrokerAddress,
    timeout_s: float,
) -> None:
    """Run `dial`; where nobody waits for it any more, `abandon` follows its end in the thread.

    Raises BrokerError that says what went wrong, also when it took longer than `timeout_s`.
    """
    job = _DIALLERS.submit(dial)
    try:
        await asyncio.wait_for(asyncio.wrap_future(job), timeout_s)
    except BaseException as error:
        job.add_done_callback(lambda _: abandon())
        if isinstance(error, (OSError, ValueError, TimeoutError)):
            raise faults.dial_fault(error, address) from None
        raise
