# No C types: compiled as it stands, because every wait goes through it.
