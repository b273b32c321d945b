"""The view of a passage whose words carry layers of figures, as HTML and in a terminal."""
