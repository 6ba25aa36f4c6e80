"""Private federated learning for edge boxes, over MQTT: the library."""
