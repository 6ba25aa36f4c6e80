"""A job's model in the user's own code, checked as in the cloud."""

from edgeveil.parts.method_context import network_of
from edgeveil.parts.methods.own_code import check_own_code


def check_own_model(plan):
    check_own_code(network_of(plan.context), plan.job.train)
