"""A whole fleet on this machine for one job: as processes, or simulated in this one."""
