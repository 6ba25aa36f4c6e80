"""The cloud's own web pages, and the JSON and event stream behind them."""
