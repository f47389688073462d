"""Configuration of the site: `make docs` builds it with Sphinx, and every warning is an error."""

import sys
from pathlib import Path

import hpcfl

sys.path.insert(0, str(Path(__file__).parent))  # where generate.py lies

project = "hpcfl"
version = release = hpcfl.__version__
html_title = f"hpcfl {release}"
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "generate"]
myst_heading_anchors = 4  # as GitHub's, so that a link works there and here
nitpicky = True
# Of other packages: their documentation is not read, so that a build needs no network.
nitpick_ignore_regex = [
    ("py:.*", r"(torch|numpy|pathlib|collections|typing)\..*|Path|Any|\w+Error|Stopped"),
    ("py:.*", r"nn\.Module|DataFrame"),
    ("py:.*", r"hpcfl\.(tools\.plan|runs)\..*"),  # parts of results, which have no page
]
autodoc_typehints = "signature"
highlight_language = "text"
smartquotes = False  # options begin with two hyphens
