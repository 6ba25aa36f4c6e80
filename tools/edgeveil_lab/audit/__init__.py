"""Every printed guarantee under attack, by samples, by exact arithmetic and by a stopwatch."""
