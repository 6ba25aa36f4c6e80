"""Command line, local runs, site files and reports for users of the library."""
