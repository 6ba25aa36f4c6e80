"""The cloud's own pages in a browser, and the JSON and the stream of changes behind them."""
