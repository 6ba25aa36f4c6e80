"""All mechanisms by name."""

from edgeveil.privacy.duchi_mechanism import duchi_mechanism
from edgeveil.privacy.gaussian_mechanism import gaussian
from edgeveil.privacy.laplace_mechanism import laplace, softmax_laplace
from edgeveil.privacy.selection_mechanism import exponential_mechanism

MECHANISMS = {
    "gaussian": gaussian,
    "laplace": laplace,
    "softmax": softmax_laplace,
    "two_value": duchi_mechanism,
    "exponential": exponential_mechanism,
}
