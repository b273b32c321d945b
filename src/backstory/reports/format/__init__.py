"""How results are written: tables and pieces of HTML."""
