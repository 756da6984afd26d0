"""Tools of the test suite: file tests and their kinds."""
