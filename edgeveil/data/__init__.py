"""Where records come from, how they are shared out and how one device splits them."""
