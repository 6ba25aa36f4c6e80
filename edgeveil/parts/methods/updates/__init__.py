"""Methods that train a whole network on the device and upload what changed."""
