"""Where the segments of a batch are opened: in the cloud's own process, its workers, or on Ray."""
