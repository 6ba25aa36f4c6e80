"""An application with a learning device inside.

    python docs/examples/embedded_client.py site/edge-1.yaml

It stands for whatever measures something: here records are pictures of digits that ship with
scikit-learn. The device learns from them while the application goes on, and none of them leaves it.
Once a job is completed the application uses its model. `edgeveil site init --local` makes a site to
try it with, `edgeveil job submit` gives the devices something to learn.
"""

import sys
import threading

import numpy as np
from sklearn.datasets import load_digits

import edgeveil

EVERY_S = 0.2


def measured():
    """This box's records: x (n, 64) and y (n,), as two arrays."""
    x, y = load_digits(return_X_y=True)
    return x[:120].astype(np.float32), y[:120]


def main(site, enough):
    """Take part until a model is there; `enough` ends it earlier."""
    with edgeveil.Device(site, records=measured, on_message=print) as device:
        while not device.status().release:  # the application's own work would stand here
            if device.status().state == "failed" or enough.wait(EVERY_S):
                print(device.status())
                return 1
        spent = device.ledger()["data_sets"][0]
        print("spent on training:", spent["training"]["epsilon"], "left:", spent["left"])
        print("model in use:", device.status().release)
        for row in device.predict(measured()[0][:3]).table():
            print(row)
    print(device.status().state)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], threading.Event()))
