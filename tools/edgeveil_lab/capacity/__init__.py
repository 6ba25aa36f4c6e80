"""How large a fleet may become: every party's messages, bytes, rows and seconds, played out."""
