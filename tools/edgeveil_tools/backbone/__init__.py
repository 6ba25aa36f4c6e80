"""The public encoders of drawn digits and pictures: their images, networks and training."""
