"""How Sphinx builds the documentation: ``make docs`` (warnings are errors)."""

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from docs import gallery_page

project = "tilewright"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_theme_options = {"page_width": "1100px", "sidebar_width": "260px"}
templates_path: list[str] = []

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

default_role = "code"
autodoc_mock_imports = ["torch"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_param = False


DOCS = Path(__file__).resolve().parent
LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+)(?:#[^)]*)?\)")


def name_files_outside(app: Any, name: str, text: list[str]) -> None:
    """Links to files of the repository that are no pages: the site names them, since it does not have them."""

    def named(link: re.Match[str]) -> str:
        file = (DOCS / name).parent.joinpath(link[2]).resolve()
        return link[0] if file.is_relative_to(DOCS) else f"{link[1]} (`{file.relative_to(DOCS.parent)}`)"

    if name == "gallery":
        text[0] = text[0].replace(gallery_page.PLACE, gallery_page.contents())
    text[0] = LINK.sub(named, text[0])


def setup(app: Any) -> None:
    app.connect("source-read", name_files_outside)
