"""Figures for what runs often, each with the work it stands for."""
