"""The command line, the local run, a site's files, reports: what people use the library with."""
