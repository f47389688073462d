"""The homes of client states: memory, and HDF5 files."""
