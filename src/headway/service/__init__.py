"""headway over the network."""
