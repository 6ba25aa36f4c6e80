"""The public encoder of drawn digits: its pictures, its network, its training."""
