"""Opening of segments: in the cloud's process, its workers, or on Ray."""
