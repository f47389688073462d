"""Stores of client states: in memory, or in HDF5 files."""
