"""The proxy: enrols devices, keeps their uploads, shuffles, never opens any."""
