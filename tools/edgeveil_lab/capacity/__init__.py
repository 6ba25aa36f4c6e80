"""Fleet capacity: every party's messages, bytes, rows and seconds, by simulation."""
