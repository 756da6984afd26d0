// Clang includes a file of this name by itself; Metal's own library is all that texts have.
