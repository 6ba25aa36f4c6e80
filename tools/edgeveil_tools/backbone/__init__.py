"""The public encoder of drawn digits: its images, network and training."""
