"""The proxy: enrols devices, stores and shuffles their uploads, and opens none."""
