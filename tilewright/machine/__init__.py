"""What a machine is, as data that checks itself."""
