"""How an installed bundle is run on each kind of host."""
