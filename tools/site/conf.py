"""Settings of Sphinx for the documentation site; `build.py` stages the pages and runs it."""

from __future__ import annotations

project = "Tidemill"
author = "The Tidemill authors"
project_copyright = "The Tidemill authors, Apache License 2.0"

extensions = ["myst_parser"]
myst_heading_anchors = 4
myst_enable_extensions = ["deflist", "html_image"]
# Blocks without a language are outputs and command lines.
highlight_language = "none"

html_theme = "pydata_sphinx_theme"
html_title = "Tidemill"
html_show_sphinx = False
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["tidemill.css"]
html_theme_options = {
    "navigation_depth": 2,
    "show_nav_level": 1,
    "show_toc_level": 1,
    "navigation_with_keys": False,
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
