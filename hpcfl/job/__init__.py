"""The job file: read, checked and typed before anything is loaded or trained."""
