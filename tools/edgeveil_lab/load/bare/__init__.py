"""`edgeveil loadtest pub | sub | conn`: bare MQTT load against any broker, or two side by side."""
