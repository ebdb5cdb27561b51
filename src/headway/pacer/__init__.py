"""`Pacer`: holds a rate for hours, and knows how far behind it is."""
