"""Figures as SVG, and what their axes share."""
