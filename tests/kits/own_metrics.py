"""Metrics of a user's own that give no number."""

import os
import time


def nothing(labels, outputs):
    return float("nan")


def hoards(labels, outputs):
    return len(bytearray(1 << 33))


def ends(labels, outputs):
    os.abort()


def waits(labels, outputs):
    time.sleep(600)
