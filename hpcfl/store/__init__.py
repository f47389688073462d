"""Stores of client states in HDF5 files."""
