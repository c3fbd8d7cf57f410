"""What mkdocs is told beside mkdocs.yml: addresses, the changelog, and a page for each example's source."""

import ast
import re
import sys
from pathlib import Path

from mkdocs.structure.files import File

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]


def on_config(config):
    """Addresses come from pyproject.toml, where there may be none."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    config.site_url, config.repo_url = urls.get("Documentation", ""), urls.get("Repository", "")
    return config


def on_files(files, config):
    """Add the changelog, and the source of each program in docs/examples as a page in place of a file to download."""
    files.append(File.generated(config, "changelog.md", content=(ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))
    for source in sorted(Path(config.docs_dir, "examples").glob("*.py")):
        file = files.get_file_from_path(f"examples/{source.name}")
        if file is not None:
            files.remove(file)
        text = source.read_text(encoding="utf-8")
        title = ast.get_docstring(ast.parse(text)).split("\n", 1)[0].split(":")[0].rstrip(".")
        page = f"# {title}\n\n`docs/examples/{source.name}`\n\n```python\n{text}```\n"
        files.append(File.generated(config, f"examples/{source.stem}.md", content=page))
    return files


def on_page_content(html, page, config, files):
    """Docstrings announce blocks of text by two colons, as reStructuredText does."""
    return re.sub(r"::(\s*</p>)", r":\1", html)


def on_page_markdown(markdown, page, config, files):
    """Links to an example lead to its page."""
    return re.sub(r"\]\((examples/\w+)\.py\)", r"](\1.md)", markdown)
